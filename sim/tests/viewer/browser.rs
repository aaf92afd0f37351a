//! The page in a real browser: keys, pointer, filters and themes are tried by `selftest.js`, which is put into the page's copy and
//! writes down what it saw. Where there is no Chromium, a line says what was not tried.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use driftq_sim::view::timeline::Timeline;
use driftq_sim::view::{page, timeline_of};
use serde::Deserialize;

use crate::{eight_actions, long_trace};

/// What `selftest.js` writes for each thing it tries.
#[derive(Debug, Deserialize)]
struct Tried {
    what: String,
    good: bool,
    seen: serde_json::Value,
}

struct Browser(PathBuf);

impl Browser {
    /// The first that is there and starts.
    fn find() -> Option<Self> {
        let named = std::env::var_os("CHROME").map(PathBuf::from);
        let usual = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"].map(PathBuf::from);
        named.into_iter().chain(usual).map(Self).find(|browser| {
            let asked = Command::new(&browser.0).arg("--version").stderr(Stdio::null()).output();
            asked.is_ok_and(|said| said.status.success() && String::from_utf8_lossy(&said.stdout).contains("Chrom"))
        })
    }

    fn start(&self, folder: &Path, args: &[&str], file: &Path) -> Child {
        let usual = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \
                     --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --window-size=1400,900";
        Command::new(&self.0)
            .args(usual.split_whitespace())
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .args(args)
            .arg(format!("file://{}", file.display()))
            .stdout(std::fs::File::create(folder.join("out")).expect("a file for what it prints"))
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts")
    }

    /// Opens a page and gives what the browser prints.
    fn run(&self, folder: &Path, args: &[&str], file: &Path) -> String {
        let mut child = self.start(folder, args, file);
        let begun = Instant::now();
        while child.try_wait().expect("the browser can be waited for").is_none() {
            if begun.elapsed() > Duration::from_secs(90) {
                let _ = child.kill();
                panic!("the browser does not end with {}", file.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::read_to_string(folder.join("out")).expect("what it printed")
    }
}

/// The browser. Where there is none, one line says what is skipped, even to whoever does not ask for the output of tests that pass.
fn browser() -> Option<&'static Browser> {
    static FOUND: OnceLock<Option<Browser>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let found = Browser::find();
        if found.is_none() {
            let why = "as there is no Chromium; install it, or name one in CHROME";
            let _ = writeln!(std::io::stderr(), "skipped: the viewer's page in a real browser, {why}");
        }
        found
    });
    found.as_ref()
}

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("viewer").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder for the test");
    path
}

/// Puts the tests of that name into a copy of the page and gives what they saw.
fn tried(browser: &Browser, name: &str, timeline: &Timeline, args: &[&str]) -> Vec<Tried> {
    let folder = folder(name);
    let file = folder.join("page.html");
    let test = format!("<script>{}\nselftest({name:?});</script></body>", include_str!("selftest.js"));
    let page = page(timeline).replacen("</body>", &test, 1);
    std::fs::write(&file, page).expect("the page can be written");
    let dumped = browser.run(&folder, &[args, &["--dump-dom"]].concat(), &file);
    let (_, rest) = dumped.split_once(r#"<pre id="seen">"#).expect("the page has written down what it saw");
    let (text, _) = rest.split_once("</pre>").expect("all of it");
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn all_good(tried: &[Tried], at_least: usize) {
    let bad: Vec<&Tried> = tried.iter().filter(|tried| !tried.good).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(tried.len() >= at_least, "only {} things were tried: {tried:#?}", tried.len());
}

#[test]
fn keys_pointer_filters_and_themes_do_what_they_say() {
    let Some(browser) = browser() else { return };
    let tried = tried(browser, "short", &eight_actions(), &["--virtual-time-budget=20000"]);
    all_good(&tried, 30);
}

#[test]
fn five_thousand_steps_are_smooth_and_take_no_more_of_a_page_than_eight() {
    let Some(browser) = browser() else { return };
    let tried = tried(browser, "long", &timeline_of(&long_trace(5_000), None), &[]);
    for figure in tried.iter().filter(|tried| tried.what.starts_with("figure: ")) {
        println!("{}: {}", figure.what, figure.seen);
    }
    all_good(&tried, 8);
}

/// Width and height, if it is a PNG.
fn size(png: &[u8]) -> Option<(u32, u32)> {
    let head = png.strip_prefix(b"\x89PNG\r\n\x1a\n")?;
    let number = |from: usize| Some(u32::from_be_bytes(head.get(from..from + 4)?.try_into().ok()?));
    Some((number(8)?, number(12)?))
}

#[test]
fn a_picture_can_be_taken_of_it() {
    let Some(browser) = browser() else { return };
    let folder = folder("picture");
    let (file, picture) = (folder.join("page.html"), folder.join("page.png"));
    std::fs::write(&file, page(&eight_actions())).expect("the page can be written");
    let args = [format!("--screenshot={}", picture.display()), "--virtual-time-budget=3000".to_owned()];
    browser.run(&folder, &args.each_ref().map(String::as_str), &file);
    let png = std::fs::read(&picture).expect("a picture was taken");
    assert_eq!(size(&png), Some((1_400, 900)));
    assert!(png.len() > 40_000, "a picture of something: {} bytes", png.len());
}
