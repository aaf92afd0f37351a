//! What the footers of segments hold, and whether it is true.

use driftq_core::codec::record as codec;
use driftq_core::log::frame::FOOTER;
use driftq_core::log::{Frame, LogPosition, MentionFilter, SegmentExtent, SegmentFooter, SegmentIndex};
use driftq_core::types::Lsn;
use serde_json::{Value, json};

use super::scan::Segment;

/// The content of a footer at byte `position` of a segment, or why it cannot be used; `None` if the frame is none.
/// `lsn` is the last one up to it.
fn content(
    segment: &Segment,
    frame: &Frame<'_>,
    position: u64,
    lsn: Option<Lsn>,
) -> Option<Result<SegmentFooter, String>> {
    if frame.head.kind != FOOTER {
        return None;
    }
    let (Ok(header), Some(lsn)) = (segment.header, lsn) else {
        return Some(Err("it is not known where the segment begins".to_owned()));
    };
    let last = LogPosition { frame: frame.head.number, lsn };
    let extent = SegmentExtent { first: header.first_entry(), last, footer_at: position };
    Some(SegmentFooter::of_frame(frame, &extent).map_err(|error| error.to_string()))
}

/// The content of a footer, as fields.
pub(super) fn fields(segment: &Segment, frame: &Frame<'_>, position: u64, lsn: Option<Lsn>) -> Value {
    let control = |index: Option<usize>, filter: Option<(u64, u64)>, unusable: Option<&str>| {
        json!({
            "frame": frame.head.number.0,
            "synced": frame.head.synced.0,
            "index_entries": index,
            "mentions": filter.map(|(mentions, _)| mentions),
            "filter_bits": filter.map(|(_, bits)| bits),
            "unusable": unusable,
        })
    };
    match content(segment, frame, position, lsn) {
        Some(Ok(footer)) => {
            let index = footer.index.as_ref().map(|index| index.entries().len());
            control(index, footer.filter.as_ref().map(|filter| (filter.mentions(), filter.bits())), None)
        }
        Some(Err(unusable)) => control(None, None, Some(&unusable)),
        None => control(None, None, None),
    }
}

/// Compares the footer of a segment with its records.
pub(super) struct FooterCheck<'a> {
    segment: &'a Segment,
    index: Option<SegmentIndex>,
    mentions: Vec<u64>,
    /// What the last footer holds.
    pub(super) found: Option<String>,
}

impl<'a> FooterCheck<'a> {
    pub(super) fn new(segment: &'a Segment) -> Self {
        let index = segment.header.ok().map(|header| SegmentIndex::new(header.first_entry()));
        Self { segment, index, mentions: Vec::new(), found: None }
    }

    /// What is wrong with the content of a footer. All frames must be passed in order, those before the first loss;
    /// `lsn` is the last one up to the frame.
    pub(super) fn pass(&mut self, frame: &Frame<'_>, position: u64, lsn: Lsn) -> Option<String> {
        if frame.is_record() {
            if let Some(index) = &mut self.index {
                index.add(LogPosition { frame: frame.head.number, lsn }, position);
            }
            if let Ok(record) = codec::decode(frame.head.kind, frame.head.version, frame.payload) {
                record.event.mentions(|mention| self.mentions.push(mention.hash()));
            }
            return None;
        }
        let footer = match content(self.segment, frame, position, Some(lsn))? {
            Ok(footer) => footer,
            Err(error) => return Some(format!("footer: {error}")),
        };
        self.found = describe(&footer);
        if footer.index.is_some() && footer.index != self.index {
            return Some("footer: its index is not that of the records".to_owned());
        }
        let lacks = |filter: &MentionFilter| !self.mentions.iter().all(|hash| filter.may_contain(*hash));
        footer.filter.as_ref().is_some_and(lacks).then(|| "footer: its filter lacks what a record mentions".to_owned())
    }
}

fn describe(footer: &SegmentFooter) -> Option<String> {
    let index = footer.index.as_ref().map(|index| format!("index of {} entries", index.entries().len()));
    let filter = footer.filter.as_ref();
    let filter = filter.map(|filter| format!("filter of {} bits for {} mentions", filter.bits(), filter.mentions()));
    let parts: Vec<_> = index.into_iter().chain(filter).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
