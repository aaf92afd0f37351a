//! The page as a file.

use driftq_sim::view::timeline::{Timeline, Track, TrackKind};
use driftq_sim::view::{page, timeline_of};

use super::{eight_actions, kept};

/// The timeline's JSON in a page.
fn timeline_in(page: &str) -> serde_json::Value {
    let (_, rest) =
        page.split_once(r#"<script type="application/json" id="timeline-data">"#).expect("the data element");
    let (json, _) = rest.split_once("</script>").expect("the end of the element");
    serde_json::from_str(json).expect("valid JSON")
}

#[test]
fn page_is_self_contained() {
    for (name, trace) in kept() {
        let page = page(&timeline_of(&trace, trace.header.mutant));
        for reference in
            ["http://", "https://", "src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("]
        {
            assert!(!page.contains(reference), "{name} loads something with {reference}");
        }
        assert!(page.contains("default-src 'none'"), "{name}: the content security policy forbids it, too");
    }
}

#[test]
fn page_contains_the_timeline() {
    let timeline = eight_actions();
    let expected = serde_json::to_value(&timeline).expect("the timeline serializes to JSON");
    assert_eq!(timeline_in(&page(&timeline)), expected);
}

#[test]
fn hostile_texts_are_not_interpreted_as_markup() {
    let hostile = "</script><script>document.title='taken'</script><!--<img src=x onerror=alert(1)>{{js}}&\u{2028}";
    let mut timeline = Timeline { title: hostile.to_owned(), about: hostile.to_owned(), ..eight_actions() };
    timeline.facts.push((hostile.to_owned(), hostile.to_owned()));
    timeline.tracks.push(Track { kind: TrackKind::Worker, name: hostile.to_owned() });
    for step in &mut timeline.steps {
        step.label = hostile.to_owned();
        step.diff.push(hostile.to_owned());
        step.messages.push(hostile.to_owned());
    }
    let html = page(&timeline);
    let ordinary_html = page(&eight_actions());
    assert_eq!(html.matches("<script").count(), ordinary_html.matches("<script").count());
    assert_eq!(html.matches("</script").count(), ordinary_html.matches("</script").count());
    assert!(!html.contains("<img") && !html.contains("<!--"), "no markup");
    assert_eq!(timeline_in(&html), serde_json::to_value(&timeline).expect("the timeline serializes to JSON"));
}

#[test]
fn empty_timeline_has_a_page() {
    let html = page(&Timeline::default());
    assert_eq!(timeline_in(&html)["steps"], serde_json::json!([]));
}
