//! Decodes the input of the `commands` target into the limits and actions of a simulated world. Numbers are small, so
//! that actions refer to the same objects.

use arbitrary::Unstructured;
use driftq_core::log::HEADER_BYTES;
use driftq_sim::actions::{
    Action, Damage, DeliveryRef, EffectBegin, EffectOutcome, EffectRef, GrantRef, IoFault, JobClass, Loss, NewMessage,
    Request, RetryPolicy, RouterDecision, Scope, SeekTarget, Subscription, Tampering,
};
use driftq_sim::names::{Call, Group, Message, Topic, Worker};
use driftq_sim::setup::Setup;

use crate::input::{below, choose};

/// The most actions of one run.
const ACTIONS_MAX: usize = 96;
/// The durations that occur.
const DURATIONS_MS: [u32; 8] = [0, 1, 5, 60, 500, 2_500, 70_000, 700_000];

/// The limits of a world: the defaults with small segments, or some limits so low that runs reach them.
pub(crate) fn setup(input: &mut Unstructured<'_>) -> Setup {
    let base = Setup { segment_bytes: HEADER_BYTES as u64 + (1 << 14), slice_bytes: 512, ..Setup::default() };
    match below(input, 4) {
        0 => base,
        1 => Setup { in_flight_max: 1, messages_max: 2, dedupe_keys_max: 2, effects_max: 2, ..base },
        2 => Setup { lease_ms: 5, snapshot_every_bytes: 300, slice_bytes: 1, dedupe_ttl_ms: 1, ..base },
        _ => Setup { segment_bytes: HEADER_BYTES as u64 + 1_200, reserve_bytes: 200, bytes_max: 64, ..base },
    }
}

/// The actions of a run: a fixed setup, then those in the input.
pub(crate) fn actions(input: &mut Unstructured<'_>) -> Vec<Action> {
    let mut reader = ActionReader { input, messages: Vec::new(), next_message: 0, next_call: 0 };
    let mut actions = setup_actions();
    while !reader.input.is_empty() && actions.len() < ACTIONS_MAX {
        let action = reader.action();
        actions.push(action);
    }
    actions
}

/// Creates a topic and subscribes a worker, so that messages are delivered in every run.
fn setup_actions() -> Vec<Action> {
    let topic = Topic::new(0);
    let create = Request::CreateTopic { topic, partitions: Some(1), keep_ms: None, keep_bytes: None };
    let stream = Subscription { topic, prefetch: 3, ..Subscription::default() };
    vec![Action::Request(create), Action::Request(Request::Subscribe(stream)), Action::FlushIo]
}

/// Reads actions from the input, and remembers which messages and calls they can refer to.
struct ActionReader<'a, 'b> {
    input: &'a mut Unstructured<'b>,
    /// Produced messages, which may be resent.
    messages: Vec<NewMessage>,
    next_message: u32,
    next_call: u32,
}

impl ActionReader<'_, '_> {
    fn below(&mut self, end: usize) -> usize {
        below(self.input, end)
    }

    fn byte(&mut self, end: usize) -> u8 {
        self.below(end) as u8
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn duration_ms(&mut self) -> u32 {
        choose(self.input, &DURATIONS_MS)
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| read(self))
    }

    fn topic(&mut self) -> Topic {
        Topic { number: u8::from(self.below(4) == 3), is_dlq: self.below(8) == 7 }
    }

    fn group(&mut self) -> Group {
        Group(u8::from(self.below(4) == 3))
    }

    fn worker(&mut self) -> Worker {
        Worker(choose(self.input, &[0, 0, 0, 1, 2]))
    }

    fn action(&mut self) -> Action {
        match self.below(32) {
            0..=13 => Action::Request(self.request()),
            14 => {
                self.next_call += 1;
                Action::Send { call: Call(self.next_call), request: self.request() }
            }
            15 => Action::Arrive { call: Call(1 + self.below(self.next_call as usize + 1) as u32) },
            16..=18 => Action::Read { worker: self.worker(), count: 1 + self.byte(4) },
            19 => match self.below(4) {
                0 => Action::RunEffect(self.grant()),
                _ => Action::AdvanceTime { ms: self.duration_ms() },
            },
            20 => Action::AdvanceTime { ms: self.duration_ms() },
            21 => {
                let ms = i64::from(self.duration_ms());
                Action::JumpClock { ms: if self.flag() { -ms } else { ms } }
            }
            22 => Action::Wake,
            23 => Action::Io { class: self.job_class(), fault: None },
            25 => {
                let fault =
                    if self.flag() { IoFault::Fail } else { IoFault::Short { bytes: u16::from(self.byte(200)) } };
                Action::Io { class: self.job_class(), fault: Some(fault) }
            }
            24 | 26 => Action::FlushIo,
            27 => Action::Snapshot,
            28 => match self.below(4) {
                0 => Action::SetFreeSpace { bytes: self.option(|reader| 64 * reader.below(64) as u32) },
                1 => Action::Close,
                2 => Action::Probe { loss: self.loss(), damage: self.damage() },
                _ => Action::Drain,
            },
            29 => Action::Crash { loss: self.loss() },
            30 => Action::Boot,
            _ => Action::BootAndCrash { after: self.byte(12), loss: self.loss() },
        }
    }

    fn job_class(&mut self) -> JobClass {
        if self.flag() { JobClass::Background } else { JobClass::Log }
    }

    fn loss(&mut self) -> Loss {
        match self.below(3) {
            0 => Loss::All,
            1 => Loss::Nothing,
            _ => Loss::Partial { seed: self.below(1 << 16) as u32 },
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

    fn request(&mut self) -> Request {
        match self.below(28) {
            0..=4 => Request::Produce(self.new_message()),
            5 | 6 => Request::Subscribe(self.subscription()),
            selector @ 7..=12 => self.delivery_request(selector),
            selector @ 13..=18 => self.effect_request(selector),
            19 => Request::CreateTopic {
                topic: self.topic(),
                partitions: self.option(|reader| reader.below(4) as u32),
                keep_ms: self.option(Self::duration_ms),
                keep_bytes: self.option(|reader| reader.below(100) as u32),
            },
            20 => Request::DeleteTopic { topic: self.topic() },
            21 => self.read_only_request(),
            22 => Request::Unsubscribe { worker: self.worker(), keeps: false },
            23 => Request::SetPrefetch { worker: self.worker(), to: self.below(5) as u32 },
            selector @ 24..=26 => self.group_request(selector),
            _ => Request::Redrive {
                topic: self.topic(),
                offset: self.option(|reader| reader.below(8) as u64),
                more: Vec::new(),
                limit: self.below(4) as u64,
            },
        }
    }

    fn subscription(&mut self) -> Subscription {
        Subscription {
            worker: self.worker(),
            topic: self.topic(),
            group: self.group(),
            owner: self.worker(),
            lease_ms: self.option(Self::duration_ms),
            prefetch: self.below(5) as u32,
            deliveries: self.option(|reader| 1 + reader.below(4) as u64),
            latest: self.flag(),
            release: self.flag(),
            ephemeral: false,
        }
    }

    fn delivery_request(&mut self, selector: usize) -> Request {
        let delivery = self.delivery_ref();
        match selector {
            7 | 8 => Request::Ack(delivery),
            9 => {
                Request::Nack { delivery, reason: self.byte(3), delay_ms: self.option(Self::duration_ms), never: false }
            }
            10 => Request::Extend { delivery, lease_ms: self.option(Self::duration_ms) },
            11 => Request::Release(delivery),
            _ => {
                let result = self.byte(3);
                // Only unsent messages: the simulator recognises the outputs of a step by their names.
                let produce = (0..self.below(3)).map(|_| self.unsent_message()).collect();
                Request::Complete { delivery, result, produce, failed: None }
            }
        }
    }

    fn effect_request(&mut self, selector: usize) -> Request {
        match selector {
            13 => Request::BeginEffect(self.effect_begin()),
            14 => Request::FinishEffect {
                grant: self.grant(),
                outcome: self.outcome(),
                result: self.byte(3),
                error: 0,
                dead_letter: None,
            },
            15 => Request::ReacquireEffect {
                worker: self.worker(),
                effect: self.effect(),
                lease_ms: self.option(Self::duration_ms),
            },
            16 => Request::RenewEffect { grant: self.grant(), lease_ms: self.option(Self::duration_ms) },
            17 => Request::GetEffect { effect: self.effect() },
            _ => Request::ForgetEffect { effect: self.effect() },
        }
    }

    fn read_only_request(&mut self) -> Request {
        match self.below(4) {
            0 => Request::ListTopics,
            1 => Request::DescribeTopic { topic: self.topic() },
            2 => Request::ListGroups { topic: self.topic() },
            _ => Request::Peek {
                topic: self.topic(),
                partition: self.below(3) as u32,
                offset: self.below(8) as u64,
                limit: self.byte(4),
            },
        }
    }

    fn group_request(&mut self, selector: usize) -> Request {
        match selector {
            24 if self.flag() => Request::CreateGroup { topic: self.topic(), group: self.group(), latest: self.flag() },
            24 => Request::DeleteGroup { topic: self.topic(), group: self.group() },
            25 => Request::Seek { topic: self.topic(), group: self.group(), to: self.seek_target() },
            _ if self.flag() => Request::Pause { topic: self.topic(), group: self.group() },
            _ => Request::Resume { topic: self.topic(), group: self.group() },
        }
    }

    /// An unsent message, or an unchanged resend.
    fn new_message(&mut self) -> NewMessage {
        if !self.messages.is_empty() && self.below(6) == 0 {
            let index = self.below(self.messages.len());
            return self.messages[index].clone();
        }
        let new_message = self.unsent_message();
        self.messages.push(new_message.clone());
        new_message
    }

    fn unsent_message(&mut self) -> NewMessage {
        self.next_message += 1;
        let mut new_message =
            NewMessage { message: Message(self.next_message), topic: self.topic(), ..NewMessage::default() };
        if self.flag() {
            new_message.key = self.byte(3);
            new_message.size = u32::from(self.byte(30));
            new_message.priority = self.byte(10);
            new_message.identity = self.option(|reader| reader.byte(3));
            new_message.tenant = self.byte(3);
            new_message.policy = self.option(|reader| RetryPolicy {
                attempts: reader.below(4) as u32,
                backoff_ms: u64::from(reader.duration_ms()),
                max_backoff_ms: u64::from(reader.duration_ms()),
            });
        }
        if self.below(4) == 0 {
            new_message.delay_ms = self.option(Self::duration_ms);
            new_message.deadline = self.option(|reader| u64::from(reader.duration_ms()));
            new_message.target = self.option(Self::topic);
            new_message.partition = self.option(|reader| reader.below(4) as u32);
            new_message.router = self.option(|reader| RouterDecision {
                topic: reader.option(Self::topic),
                partition: reader.option(|reader| reader.below(4) as u32),
            });
            if new_message.delay_ms.is_none() {
                new_message.deliver_at = self.option(|reader| u64::from(reader.duration_ms()));
            }
        }
        new_message
    }

    fn delivery_ref(&mut self) -> DeliveryRef {
        let message = Message(1 + self.below(self.next_message as usize + 1) as u32);
        DeliveryRef { worker: self.worker(), message, back: self.byte(2), tampering: self.tampering() }
    }

    fn tampering(&mut self) -> Tampering {
        match self.below(16) {
            0 => Tampering::NoToken,
            1 => Tampering::Unreadable,
            2 => Tampering::WrongOwner,
            3 => Tampering::WrongPartition,
            4 => Tampering::WrongOffset,
            5 => Tampering::WrongGroup,
            6 => Tampering::NoGroup,
            _ => Tampering::None,
        }
    }

    fn effect(&mut self) -> EffectRef {
        let scope = match self.below(5) {
            0 => Scope::Tenant,
            1 => Scope::Consume { topic: self.topic(), group: self.group() },
            2 => Scope::Job { id: self.byte(2) },
            3 => Scope::Task { id: self.byte(2) },
            _ => Scope::Rpc { principal: self.byte(2), method: self.byte(2) },
        };
        EffectRef { scope, tenant: self.byte(2), key: self.byte(3) }
    }

    fn effect_begin(&mut self) -> EffectBegin {
        EffectBegin {
            worker: self.worker(),
            effect: self.effect(),
            lease_ms: self.option(Self::duration_ms),
            ttl_ms: self.option(Self::duration_ms),
            expires_at: None,
            request: self.byte(3),
            report: self.option(Self::flag),
            delivery: self.option(Self::delivery_ref),
        }
    }

    fn grant(&mut self) -> GrantRef {
        GrantRef { worker: self.worker(), effect: self.effect(), back: self.byte(2), tampering: self.tampering() }
    }

    fn outcome(&mut self) -> EffectOutcome {
        match self.below(6) {
            0 => EffectOutcome::FailedFinal,
            1 => EffectOutcome::FailedRetryable,
            2 => EffectOutcome::InProgress,
            _ => EffectOutcome::Succeeded,
        }
    }

    fn seek_target(&mut self) -> SeekTarget {
        match self.below(4) {
            0 => SeekTarget::Earliest,
            1 => SeekTarget::Latest,
            2 => SeekTarget::Offset(self.below(8) as u64),
            _ => SeekTarget::Time(u64::from(self.duration_ms())),
        }
    }
}
