//! A fuzzer's bytes as the steps of a simulated world. Numbers are small, so that steps speak of the same things.

use arbitrary::Unstructured;
use driftq_core::log::HEADER_BYTES;
use driftq_sim::names::{Call, Group, Message, Topic, Worker};
use driftq_sim::setup::Setup;
use driftq_sim::steps::{
    Ask, Beginning, Damage, Effect, Ended, Grant, IoFault, JobClass, Loss, Made, Policy, Right, Router, Scope, Step,
    Stream, Target, Twist,
};

use crate::script::below;

/// The most steps of one life: enough for a story, few enough to be quick.
const STEPS_MAX: usize = 96;
/// Spans of time, in milliseconds.
const SPANS: [u32; 8] = [0, 1, 5, 60, 500, 2_500, 70_000, 700_000];

/// The limits of a world: mostly the usual ones, some small.
pub(crate) fn setup(input: &mut Unstructured<'_>) -> Setup {
    let usual = Setup { segment_bytes: HEADER_BYTES as u64 + (1 << 14), slice_bytes: 512, ..Setup::default() };
    match below(input, 4) {
        0 => usual,
        1 => Setup { in_flight_max: 1, messages_max: 2, dedupe_keys_max: 2, effects_max: 2, ..usual },
        2 => Setup { lease_ms: 5, snapshot_every_bytes: 300, slice_bytes: 1, ack_ttl_ms: 1, ..usual },
        _ => Setup { segment_bytes: HEADER_BYTES as u64 + 1_200, reserve_bytes: 200, bytes_max: 64, ..usual },
    }
}

/// All steps there are in the input.
pub(crate) fn steps(input: &mut Unstructured<'_>) -> Vec<Step> {
    let mut reader = Reader { input, messages: Vec::new(), next_message: 0, next_call: 0 };
    let mut steps = prelude();
    while !reader.input.is_empty() && steps.len() < STEPS_MAX {
        let step = reader.step();
        steps.push(step);
    }
    steps
}

/// Every life begins with a topic and a worker, so that what is produced is delivered.
fn prelude() -> Vec<Step> {
    let topic = Topic::live(0);
    let create = Ask::Create { topic, partitions: Some(1), keep_ms: None, keep_bytes: None };
    let stream = Stream { topic, prefetch: 3, ..Stream::default() };
    vec![Step::Ask(create), Step::Ask(Ask::Subscribe(stream)), Step::Settle]
}

struct Reader<'a, 'b> {
    input: &'a mut Unstructured<'b>,
    /// What was sent and may be sent again.
    messages: Vec<Made>,
    next_message: u32,
    next_call: u32,
}

impl Reader<'_, '_> {
    fn below(&mut self, end: usize) -> usize {
        below(self.input, end)
    }

    fn byte(&mut self, end: usize) -> u8 {
        self.below(end) as u8
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn span(&mut self) -> u32 {
        SPANS[self.below(SPANS.len())]
    }

    fn maybe<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| read(self))
    }

    fn topic(&mut self) -> Topic {
        Topic { number: u8::from(self.below(4) == 3), dead: self.below(8) == 7 }
    }

    fn group(&mut self) -> Group {
        Group(u8::from(self.below(4) == 3))
    }

    fn worker(&mut self) -> Worker {
        Worker([0, 0, 0, 1, 2][self.below(5)])
    }

    fn step(&mut self) -> Step {
        match self.below(32) {
            0..=13 => Step::Ask(self.ask()),
            14 => {
                self.next_call += 1;
                Step::Send { call: Call(self.next_call), ask: self.ask() }
            }
            15 => Step::Arrive { call: Call(1 + self.below(self.next_call as usize + 1) as u32) },
            16..=18 => Step::Read { worker: self.worker(), count: 1 + self.byte(4) },
            19 => match self.below(4) {
                0 => Step::Run(self.grant()),
                _ => Step::Pass { ms: self.span() },
            },
            20 => Step::Pass { ms: self.span() },
            21 => {
                let ms = i64::from(self.span());
                Step::Jump { ms: if self.flag() { -ms } else { ms } }
            }
            22 => Step::Wake,
            23 => Step::Io { class: self.class(), fault: None },
            25 => {
                let fault =
                    if self.flag() { IoFault::Fail } else { IoFault::Short { bytes: u16::from(self.byte(200)) } };
                Step::Io { class: self.class(), fault: Some(fault) }
            }
            24 | 26 => Step::Settle,
            27 => Step::Snapshot,
            28 => match self.below(4) {
                0 => Step::Room { bytes: self.maybe(|reader| 64 * reader.below(64) as u32) },
                1 => Step::Close,
                2 => Step::Probe { loss: self.loss(), damage: self.damage() },
                _ => Step::Drain,
            },
            29 => Step::Crash { loss: self.loss() },
            30 => Step::Boot,
            _ => Step::BootAndCrash { after: self.byte(12), loss: self.loss() },
        }
    }

    fn class(&mut self) -> JobClass {
        if self.flag() { JobClass::Background } else { JobClass::Log }
    }

    fn loss(&mut self) -> Loss {
        match self.below(3) {
            0 => Loss::All,
            1 => Loss::Nothing,
            _ => Loss::Some { luck: self.below(1 << 16) as u32 },
        }
    }

    fn damage(&mut self) -> Damage {
        let number = self.below(1 << 16) as u32;
        match self.below(4) {
            0 => Damage::Flip { bit: number },
            1 => Damage::Zero { sector: number },
            2 => Damage::Misdirect { from: number, to: self.below(1 << 8) as u32 },
            _ => Damage::Unreadable { sector: number },
        }
    }

    fn ask(&mut self) -> Ask {
        match self.below(28) {
            0..=4 => Ask::Produce(self.made()),
            5 | 6 => Ask::Subscribe(Stream {
                worker: self.worker(),
                topic: self.topic(),
                group: self.group(),
                owner: self.worker(),
                lease_ms: self.maybe(Self::span),
                prefetch: self.below(5) as u32,
                deliveries: self.maybe(|reader| 1 + reader.below(4) as u64),
                latest: self.flag(),
                release: self.flag(),
            }),
            7 | 8 => Ask::Ack(self.right()),
            9 => Ask::Nack { right: self.right(), reason: self.byte(3), delay_ms: self.maybe(Self::span) },
            10 => Ask::Extend { right: self.right(), lease_ms: self.maybe(Self::span) },
            11 => Ask::Release(self.right()),
            12 => {
                let (right, result) = (self.right(), self.byte(3));
                // Only new ones: the simulator tells by a message's name whether its step was completed.
                let produce = (0..self.below(3)).map(|_| self.fresh()).collect();
                Ask::Complete { right, result, produce }
            }
            13 => Ask::Begin(self.beginning()),
            14 => Ask::Finish { grant: self.grant(), ended: self.ended(), result: self.byte(3) },
            15 => Ask::Reacquire { worker: self.worker(), effect: self.effect(), lease_ms: self.maybe(Self::span) },
            16 => Ask::Renew { grant: self.grant(), lease_ms: self.maybe(Self::span) },
            17 => Ask::Get { effect: self.effect() },
            18 => Ask::Forget { effect: self.effect() },
            19 => Ask::Create {
                topic: self.topic(),
                partitions: self.maybe(|reader| reader.below(4) as u32),
                keep_ms: self.maybe(Self::span),
                keep_bytes: self.maybe(|reader| reader.below(100) as u32),
            },
            20 => Ask::Delete { topic: self.topic() },
            21 => match self.below(4) {
                0 => Ask::Topics,
                1 => Ask::Describe { topic: self.topic() },
                2 => Ask::Groups { topic: self.topic() },
                _ => Ask::Peek {
                    topic: self.topic(),
                    partition: self.below(3) as u32,
                    offset: self.below(8) as u64,
                    limit: self.byte(4),
                },
            },
            22 => Ask::Leave { worker: self.worker() },
            23 => Ask::Prefetch { worker: self.worker(), to: self.below(5) as u32 },
            24 => match self.flag() {
                true => Ask::CreateGroup { topic: self.topic(), group: self.group(), latest: self.flag() },
                false => Ask::DeleteGroup { topic: self.topic(), group: self.group() },
            },
            25 => Ask::Seek { topic: self.topic(), group: self.group(), to: self.target() },
            26 => match self.flag() {
                true => Ask::Pause { topic: self.topic(), group: self.group() },
                false => Ask::Resume { topic: self.topic(), group: self.group() },
            },
            _ => Ask::Redrive {
                topic: self.topic(),
                offset: self.maybe(|reader| reader.below(8) as u64),
                limit: self.below(4) as u64,
            },
        }
    }

    /// A new message, or one that is sent again as it was.
    fn made(&mut self) -> Made {
        if !self.messages.is_empty() && self.below(6) == 0 {
            let again = self.below(self.messages.len());
            return self.messages[again].clone();
        }
        let made = self.fresh();
        self.messages.push(made.clone());
        made
    }

    fn fresh(&mut self) -> Made {
        self.next_message += 1;
        let mut made = Made { message: Message(self.next_message), topic: self.topic(), ..Made::default() };
        if self.flag() {
            made.key = self.byte(3);
            made.size = self.byte(30);
            made.priority = self.byte(10);
            made.identity = self.maybe(|reader| reader.byte(3));
            made.tenant = self.byte(3);
            made.policy = self.maybe(|reader| Policy {
                attempts: reader.below(4) as u32,
                backoff_ms: u64::from(reader.span()),
                longest_ms: u64::from(reader.span()),
            });
        }
        if self.below(4) == 0 {
            made.delay_ms = self.maybe(Self::span);
            made.deadline = self.maybe(|reader| u64::from(reader.span()));
            made.target = self.maybe(Self::topic);
            made.partition = self.maybe(|reader| reader.below(4) as u32);
            made.router = self.maybe(|reader| Router {
                topic: reader.maybe(Self::topic),
                partition: reader.maybe(|reader| reader.below(4) as u32),
            });
            if made.delay_ms.is_none() {
                made.deliver_at = self.maybe(|reader| u64::from(reader.span()));
            }
        }
        made
    }

    fn right(&mut self) -> Right {
        let message = Message(1 + self.below(self.next_message as usize + 1) as u32);
        Right { worker: self.worker(), message, back: self.byte(2), twist: self.twist() }
    }

    fn twist(&mut self) -> Twist {
        match self.below(16) {
            0 => Twist::NoToken,
            1 => Twist::Unreadable,
            2 => Twist::WrongOwner,
            3 => Twist::WrongPartition,
            4 => Twist::WrongOffset,
            5 => Twist::WrongGroup,
            6 => Twist::NoGroup,
            _ => Twist::None,
        }
    }

    fn effect(&mut self) -> Effect {
        let scope = match self.below(5) {
            0 => Scope::Tenant,
            1 => Scope::Consume { topic: self.topic(), group: self.group() },
            2 => Scope::Job { id: self.byte(2) },
            3 => Scope::Task { id: self.byte(2) },
            _ => Scope::Rpc { principal: self.byte(2), method: self.byte(2) },
        };
        Effect { scope, tenant: self.byte(2), key: self.byte(3) }
    }

    fn beginning(&mut self) -> Beginning {
        Beginning {
            worker: self.worker(),
            effect: self.effect(),
            lease_ms: self.maybe(Self::span),
            ttl_ms: self.maybe(Self::span),
            expires_at: None,
            request: self.byte(3),
            report: self.maybe(Self::flag),
            delivery: self.maybe(Self::right),
        }
    }

    fn grant(&mut self) -> Grant {
        Grant { worker: self.worker(), effect: self.effect(), back: self.byte(2), twist: self.twist() }
    }

    fn ended(&mut self) -> Ended {
        match self.below(6) {
            0 => Ended::FailedFinal,
            1 => Ended::FailedRetryable,
            2 => Ended::InProgress,
            _ => Ended::Succeeded,
        }
    }

    fn target(&mut self) -> Target {
        match self.below(4) {
            0 => Target::Earliest,
            1 => Target::Latest,
            2 => Target::Offset(self.below(8) as u64),
            _ => Target::Time(u64::from(self.span())),
        }
    }
}
