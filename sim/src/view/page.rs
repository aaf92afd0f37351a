//! The page: one self-contained HTML file with the timeline, the style and the script.

use super::timeline::Timeline;

const HTML: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
/// The script, in load order.
const JS: &str = concat!(include_str!("page/glyphs.js"), include_str!("page/chart.js"), include_str!("page/page.js"));

/// The page of a timeline. It needs no network and no other file, and texts of the timeline are never interpreted as
/// markup.
#[must_use]
pub fn page(timeline: &Timeline) -> String {
    let json = serde_json::to_string(timeline).expect("the value serializes to JSON");
    // No text may close the script element.
    let json = json.replace('<', "\\u003c");
    let title = escaped(&timeline.title);
    let mut page = String::with_capacity(HTML.len() + CSS.len() + JS.len() + json.len());
    let mut rest = HTML;
    for (placeholder, text) in [("{{title}}", title.as_str()), ("{{css}}", CSS), ("{{data}}", &json), ("{{js}}", JS)] {
        let (before, after) = rest.split_once(placeholder).expect("the template has its placeholders, in this order");
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
