//! The kinds of work of which the budget consists, and how the cost of each follows from what can be driven.

use clap::ValueEnum;

use super::settles::Settling;
use super::traffic::{Taking, Traffic};

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A produce of one message
    Produce,
    /// A line of a produced batch
    Line,
    /// A delivery on a stream
    Delivery,
    /// An ack in a request of its own
    Ack,
    /// An ack as a line of a batch
    AckLine,
    /// A complete with two outputs
    Complete,
    /// A begin of an effect
    Begin,
    /// A finish of an effect
    Finish,
}

impl Kind {
    /// The heading of its column.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Line => "line of a batch",
            Self::Delivery => "delivery",
            Self::Ack => "ack",
            Self::AckLine => "ack line",
            Self::Complete => "complete",
            Self::Begin => "begin",
            Self::Finish => "finish",
        }
    }

    /// Its cost is that of the first per message, less that of the second.
    pub(crate) fn difference(self) -> (Traffic, Option<Traffic>) {
        match self {
            Self::Produce => (Traffic::Produces, None),
            Self::Line => (Traffic::Batches, None),
            Self::Delivery => (Traffic::Flow(Some(Taking::Hold)), Some(Traffic::Flow(None))),
            Self::Ack => (Traffic::Settles(Settling::Ack), None),
            Self::AckLine => (Traffic::Settles(Settling::AckLines), None),
            Self::Complete => (Traffic::Settles(Settling::Complete), None),
            Self::Begin => (Traffic::Begins, None),
            Self::Finish => (Traffic::Effects, Some(Traffic::Begins)),
        }
    }

    /// Everything that has to be driven for these kinds, each once.
    pub(super) fn traffic_of(kinds: &[Kind]) -> Vec<Traffic> {
        let mut all = Vec::new();
        for kind in kinds {
            let (with, without) = kind.difference();
            for traffic in without.into_iter().chain([with]) {
                if !all.contains(&traffic) {
                    all.push(traffic);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_that_kinds_share_is_driven_once() {
        let traffic = Kind::traffic_of(&[Kind::Delivery, Kind::Begin, Kind::Finish]);
        let flows = [Traffic::Flow(None), Traffic::Flow(Some(Taking::Hold))];
        assert_eq!(traffic, [flows[0], flows[1], Traffic::Begins, Traffic::Effects]);
    }

    #[test]
    fn columns_have_distinct_headings() {
        let mut titles: Vec<_> = Kind::value_variants().iter().map(|kind| kind.title()).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), Kind::value_variants().len());
    }
}
