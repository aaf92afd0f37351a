//! The page in a real browser: `selftest.js` is injected into a copy of the page, exercises keys, pointer, filters and
//! themes, and writes its results into the document. Without Chromium the tests print that they were skipped.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use driftq_sim::view::timeline::Timeline;
use driftq_sim::view::{page, timeline_of};
use serde::Deserialize;

use super::{eight_actions, long_trace};

/// One result of `selftest.js`.
#[derive(Debug, Deserialize)]
struct CheckResult {
    what: String,
    good: bool,
    seen: serde_json::Value,
}

struct Browser(PathBuf);

impl Browser {
    /// The first browser that starts.
    fn find() -> Option<Self> {
        let configured = std::env::var_os("CHROME").map(PathBuf::from);
        let common = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"].map(PathBuf::from);
        configured.into_iter().chain(common).map(Self).find(|browser| {
            let version = Command::new(&browser.0).arg("--version").stderr(Stdio::null()).output();
            version.is_ok_and(|output| {
                output.status.success() && String::from_utf8_lossy(&output.stdout).contains("Chrom")
            })
        })
    }

    fn start(&self, folder: &Path, args: &[&str], file: &Path) -> Child {
        let options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
                     --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --window-size=1400,900";
        Command::new(&self.0)
            .args(options.split_whitespace())
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .args(args)
            .arg(format!("file://{}", file.display()))
            .stdout(std::fs::File::create(folder.join("out")).expect("a file for its output"))
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts")
    }

    /// Opens a page and returns the browser's output.
    fn run(&self, folder: &Path, args: &[&str], file: &Path) -> String {
        let mut child = self.start(folder, args, file);
        let started = Instant::now();
        while child.try_wait().expect("the browser can be waited for").is_none() {
            if started.elapsed() > Duration::from_secs(90) {
                let _ = child.kill();
                panic!("the browser does not exit for {}", file.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::read_to_string(folder.join("out")).expect("its output")
    }
}

/// The browser. If there is none, a line on standard error says what is skipped.
fn browser() -> Option<&'static Browser> {
    static FOUND: OnceLock<Option<Browser>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let found = Browser::find();
        if found.is_none() {
            let why = "because there is no Chromium; install it, or set CHROME";
            let _ = writeln!(std::io::stderr(), "skipped: the viewer's page in a real browser, {why}");
        }
        found
    });
    found.as_ref()
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("viewer").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a directory for the test");
    path
}

/// Injects the tests of that name into a copy of the page and returns their results.
fn results(browser: &Browser, name: &str, timeline: &Timeline, args: &[&str]) -> Vec<CheckResult> {
    let folder = folder(name);
    let file = folder.join("page.html");
    let test = format!("<script>{}\nselftest({name:?});</script></body>", include_str!("selftest.js"));
    let page = page(timeline).replacen("</body>", &test, 1);
    std::fs::write(&file, page).expect("the page is written");
    let dumped = browser.run(&folder, &[args, &["--dump-dom"]].concat(), &file);
    let (_, rest) = dumped.split_once(r#"<pre id="seen">"#).expect("the page contains the results");
    let (text, _) = rest.split_once("</pre>").expect("the results are complete");
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn assert_all_good(results: &[CheckResult], at_least: usize) {
    let bad: Vec<&CheckResult> = results.iter().filter(|result| !result.good).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(results.len() >= at_least, "only {} checks ran: {results:#?}", results.len());
}

#[test]
fn keys_pointer_filters_and_themes_work() {
    let Some(browser) = browser() else { return };
    let results = results(browser, "short", &eight_actions(), &["--virtual-time-budget=20000"]);
    assert_all_good(&results, 30);
}

#[test]
fn page_of_five_thousand_actions_stays_small_and_responsive() {
    let Some(browser) = browser() else { return };
    let results = results(browser, "long", &timeline_of(&long_trace(5_000), None), &[]);
    for figure in results.iter().filter(|result| result.what.starts_with("figure: ")) {
        println!("{}: {}", figure.what, figure.seen);
    }
    assert_all_good(&results, 8);
}

/// Width and height, if it is a PNG.
fn size(png: &[u8]) -> Option<(u32, u32)> {
    let head = png.strip_prefix(b"\x89PNG\r\n\x1a\n")?;
    let number = |from: usize| Some(u32::from_be_bytes(head.get(from..from + 4)?.try_into().ok()?));
    Some((number(8)?, number(12)?))
}

#[test]
fn screenshot_of_the_page_has_content() {
    let Some(browser) = browser() else { return };
    let folder = folder("picture");
    let (file, picture) = (folder.join("page.html"), folder.join("page.png"));
    std::fs::write(&file, page(&eight_actions())).expect("the page is written");
    let args = [format!("--screenshot={}", picture.display()), "--virtual-time-budget=3000".to_owned()];
    browser.run(&folder, &args.each_ref().map(String::as_str), &file);
    let png = std::fs::read(&picture).expect("a screenshot was taken");
    assert_eq!(size(&png), Some((1_400, 900)));
    assert!(png.len() > 40_000, "an empty screenshot: {} bytes", png.len());
}
