//! The page as a file.

use driftq_sim::view::timeline::{Timeline, Track, TrackKind};
use driftq_sim::view::{page, timeline_of};

use crate::{eight_actions, kept};

/// What stands in the page as the story's JSON.
fn timeline_in(page: &str) -> serde_json::Value {
    let (_, rest) =
        page.split_once(r#"<script type="application/json" id="timeline-data">"#).expect("the story's element");
    let (json, _) = rest.split_once("</script>").expect("its end");
    serde_json::from_str(json).expect("it is JSON")
}

#[test]
fn a_page_needs_nothing_but_itself() {
    for (name, trace) in kept() {
        let page = page(&timeline_of(&trace, trace.header.mutant));
        for elsewhere in
            ["http://", "https://", "src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("]
        {
            assert!(!page.contains(elsewhere), "{name} asks for something with {elsewhere}");
        }
        assert!(page.contains("default-src 'none'"), "{name}: the browser is told so, too");
    }
}

#[test]
fn the_story_in_a_page_is_the_story() {
    let timeline = eight_actions();
    let told = serde_json::to_value(&timeline).expect("a story has a form in JSON");
    assert_eq!(timeline_in(&page(&timeline)), told);
}

#[test]
fn whatever_names_say_they_stay_texts() {
    let hostile = "</script><script>document.title='taken'</script><!--<img src=x onerror=alert(1)>{{js}}&\u{2028}";
    let mut timeline = Timeline { title: hostile.to_owned(), about: hostile.to_owned(), ..eight_actions() };
    timeline.facts.push((hostile.to_owned(), hostile.to_owned()));
    timeline.tracks.push(Track { kind: TrackKind::Worker, name: hostile.to_owned() });
    for step in &mut timeline.steps {
        step.label = hostile.to_owned();
        step.diff.push(hostile.to_owned());
        step.messages.push(hostile.to_owned());
    }
    let shown = page(&timeline);
    let usual = page(&eight_actions());
    assert_eq!(shown.matches("<script").count(), usual.matches("<script").count());
    assert_eq!(shown.matches("</script").count(), usual.matches("</script").count());
    assert!(!shown.contains("<img") && !shown.contains("<!--"), "nothing of it is markup");
    assert_eq!(timeline_in(&shown), serde_json::to_value(&timeline).expect("a story has a form in JSON"));
}

#[test]
fn a_story_in_which_nothing_happens_has_a_page() {
    let shown = page(&Timeline::default());
    assert_eq!(timeline_in(&shown)["steps"], serde_json::json!([]));
}
