//! The kinds of things that happen, and how often each does in one world.

use super::Profile;
use super::random::Source;

macro_rules! families {
    ($($name:ident: $need:ident $most:literal,)*) => {
        /// A kind of step.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum ActionKind {
            $($name,)*
            /// A worker that follows the contract of the idempotency store goes on.
            Work,
            /// Somebody uses the store beside the queue.
            Effect,
            /// Somebody uses it as one should not.
            OddEffect,
            /// A worker completes a step.
            Complete,
        }

        const ALL: &[(ActionKind, Need, u32)] = &[$((ActionKind::$name, Need::$need, $most),)*];
    };
}

/// Whether a world can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing would happen without it.
    Always,
    /// Half of all worlds never see it.
    Maybe,
}

families! {
    Produce: Always 24,
    Resend: Maybe 8,
    Read: Always 16,
    Ack: Always 20,
    Nack: Maybe 16,
    Extend: Maybe 6,
    Release: Maybe 6,
    Odd: Maybe 6,
    Subscribe: Always 6,
    Leave: Maybe 10,
    Prefetch: Maybe 2,
    Describe: Maybe 4,
    Peek: Maybe 3,
    List: Maybe 1,
    CreateTopic: Maybe 2,
    DeleteTopic: Maybe 1,
    CreateGroup: Maybe 3,
    DeleteGroup: Maybe 4,
    Seek: Maybe 9,
    Pause: Maybe 2,
    Redrive: Maybe 4,
    Send: Maybe 6,
    Arrive: Maybe 8,
    Pass: Always 14,
    PassLong: Maybe 1,
    Wake: Always 14,
    Jump: Maybe 2,
    LogIo: Always 24,
    BackgroundIo: Always 10,
    Settle: Maybe 8,
    Snapshot: Maybe 3,
    IoFault: Maybe 1,
    Room: Maybe 1,
    Probe: Maybe 5,
    Crash: Maybe 2,
    Kill: Maybe 1,
    Close: Maybe 1,
    BootAndCrash: Maybe 1,
}

/// What only users of the idempotency store do, and how often at most.
const STORE: &[(ActionKind, u32)] =
    &[(ActionKind::Work, 40), (ActionKind::Effect, 16), (ActionKind::OddEffect, 10), (ActionKind::Complete, 20)];

/// How often each kind of thing happens in one world.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    on: Vec<(ActionKind, u32)>,
    total: u32,
}

impl Weights {
    pub(super) fn draw(source: &mut Source, store: &mut Source, profile: Profile) -> Self {
        let mut on = Vec::new();
        for (kind, need, most) in ALL {
            if *need == Need::Maybe && source.one_in(2) {
                continue;
            }
            // In eighths of the most, so that even the rarest can be rarer.
            on.push((*kind, *most * (1 + source.below(8) as u32)));
        }
        // A third of all worlds know nothing of the store.
        if profile == Profile::Effects || !store.one_in(3) {
            for (kind, most) in STORE {
                match profile {
                    Profile::Effects => on.push((*kind, *most * (4 + store.below(5) as u32))),
                    Profile::Default if store.one_in(4) => {}
                    Profile::Default => on.push((*kind, *most * (1 + store.below(8) as u32))),
                }
            }
        }
        let total = on.iter().map(|(_, weight)| weight).sum();
        Self { on, total }
    }

    pub(super) fn is_on(&self, kind: ActionKind) -> bool {
        self.on.iter().any(|(on, _)| *on == kind)
    }

    pub(super) fn pick(&self, source: &mut Source) -> ActionKind {
        let mut left = source.below(u64::from(self.total)) as u32;
        for (kind, weight) in &self.on {
            if left < *weight {
                return *kind;
            }
            left -= weight;
        }
        ActionKind::Wake
    }
}
