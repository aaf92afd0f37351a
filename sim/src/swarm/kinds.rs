//! The kinds of actions, and how often each occurs in one world.

use super::profile::Profile;
use super::random::Source;

macro_rules! kinds {
    ($($name:ident: $presence:ident $weight_max:literal,)*) => {
        /// A kind of action.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum ActionKind {
            $($name,)*
            /// A worker continues by the protocol of the idempotency store.
            ContinueDelivery,
            /// A client uses the store without the queue.
            StandaloneEffect,
            /// A client uses the store incorrectly.
            InvalidEffect,
            /// A worker completes a step.
            Complete,
        }

        const ALL: &[(ActionKind, Presence, u32)] = &[$((ActionKind::$name, Presence::$presence, $weight_max),)*];
    };
}

/// Whether every world has a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// Present in every world.
    Always,
    /// Absent from half of all worlds.
    Optional,
}

kinds! {
    Produce: Always 24,
    Resend: Optional 8,
    Read: Always 16,
    Ack: Always 20,
    Nack: Optional 16,
    Extend: Optional 6,
    Release: Optional 6,
    InvalidClaim: Optional 6,
    Subscribe: Always 6,
    Unsubscribe: Optional 10,
    Prefetch: Optional 2,
    Describe: Optional 4,
    Peek: Optional 3,
    List: Optional 1,
    CreateTopic: Optional 2,
    DeleteTopic: Optional 2,
    CreateGroup: Optional 3,
    DeleteGroup: Optional 4,
    Seek: Optional 9,
    Pause: Optional 2,
    Redrive: Optional 10,
    SendRequest: Optional 6,
    RequestArrives: Optional 8,
    AdvanceTime: Always 14,
    AdvanceTimeFar: Optional 1,
    Wake: Always 14,
    JumpClock: Optional 2,
    LogIo: Always 24,
    BackgroundIo: Always 10,
    FlushIo: Optional 8,
    Snapshot: Optional 3,
    IoFault: Optional 1,
    SetFreeSpace: Optional 2,
    Probe: Optional 5,
    Crash: Optional 2,
    Kill: Optional 1,
    Close: Optional 1,
    BootAndCrash: Optional 1,
    Withdraw: Optional 3,
    Purge: Optional 2,
    AckCumulative: Optional 9,
    ExpireLease: Optional 3,
    ListEffects: Optional 2,
}

/// Kinds of store users, with their largest weights.
const STORE: &[(ActionKind, u32)] = &[
    (ActionKind::ContinueDelivery, 40),
    (ActionKind::StandaloneEffect, 16),
    (ActionKind::InvalidEffect, 10),
    (ActionKind::Complete, 20),
];

/// The weight of each kind in one world.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    enabled: Vec<(ActionKind, u32)>,
    total: u32,
}

impl Weights {
    pub(super) fn draw(source: &mut Source, store: &mut Source, profile: Profile) -> Self {
        let mut enabled = Vec::new();
        for (kind, presence, weight_max) in ALL {
            if profile == Profile::Weeks && *presence == Presence::Optional {
                match kind {
                    // Faults, and what removes everything at once: rare or never.
                    ActionKind::IoFault | ActionKind::SetFreeSpace | ActionKind::Probe => continue,
                    ActionKind::DeleteTopic | ActionKind::Purge | ActionKind::BootAndCrash => continue,
                    ActionKind::Crash | ActionKind::Kill | ActionKind::Close => {
                        enabled.push((*kind, 1));
                        continue;
                    }
                    ActionKind::AdvanceTimeFar | ActionKind::FlushIo => {
                        enabled.push((*kind, 40));
                        continue;
                    }
                    _ => {}
                }
            }
            if *presence == Presence::Optional && source.one_in(2) {
                continue;
            }
            // In eighths of the largest weight, so that rare kinds can be rarer still.
            enabled.push((*kind, *weight_max * (1 + source.below(8) as u32)));
        }
        // A third of all worlds do not use the store.
        if profile == Profile::Effects || !store.one_in(3) {
            for (kind, weight_max) in STORE {
                match profile {
                    Profile::Effects => enabled.push((*kind, *weight_max * (4 + store.below(5) as u32))),
                    Profile::Default | Profile::Weeks if store.one_in(4) => {}
                    Profile::Default | Profile::Weeks => {
                        enabled.push((*kind, *weight_max * (1 + store.below(8) as u32)));
                    }
                }
            }
        }
        let total = enabled.iter().map(|(_, weight)| weight).sum();
        Self { enabled, total }
    }

    pub(super) fn is_enabled(&self, kind: ActionKind) -> bool {
        self.enabled.iter().any(|(enabled, _)| *enabled == kind)
    }

    pub(super) fn pick(&self, source: &mut Source) -> ActionKind {
        let mut left = source.below(u64::from(self.total)) as u32;
        for (kind, weight) in &self.enabled {
            if left < *weight {
                return *kind;
            }
            left -= weight;
        }
        ActionKind::Wake
    }
}
