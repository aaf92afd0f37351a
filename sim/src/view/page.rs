//! One HTML file with everything in it: the story, the look and the program that shows it.

use super::timeline::Timeline;

const HTML: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
/// Its program, in the order in which it is read.
const JS: &str = concat!(include_str!("page/glyphs.js"), include_str!("page/chart.js"), include_str!("page/page.js"));

/// A page that shows the story. It needs no network and no other file, and whatever the story's texts say, they stay texts.
#[must_use]
pub fn page(timeline: &Timeline) -> String {
    let json = serde_json::to_string(timeline).expect("names and numbers have a form in JSON");
    // Nothing in the story may end the element it stands in.
    let json = json.replace('<', "\\u003c");
    let title = escaped(&timeline.title);
    let mut page = String::with_capacity(HTML.len() + CSS.len() + JS.len() + json.len());
    let mut rest = HTML;
    for (mark, text) in [("{{title}}", title.as_str()), ("{{css}}", CSS), ("{{data}}", &json), ("{{js}}", JS)] {
        let (before, after) = rest.split_once(mark).expect("the page has its marks, in this order");
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// A text as it may stand in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
