//! Executes inputs: starts, timeouts and commands.

use driftq_core::command::{
    Ack, ChangeRetention, CloseStream, CreateGroup, CreateTopic, DeleteGroup, DeleteTopic, DescribeTopic, Extend,
    ListGroups, ListTopics, Nack, Pause, Peek, Purge, Redrive, Release, Resume, Seek, SetPrefetch, Unsubscribe,
    Withdraw,
};
use driftq_core::pipeline::RefusedAppend;
use driftq_core::types::{GroupOrigin, Now, Ticket};
use driftq_core::{Command, Refusal, Reply};

use super::expected::{Expected, ExpectedReply};
use super::model::{Input, Model, Reclaim, Stop, Unwritten};
use super::room::Room;

impl Model {
    /// Executes an input.
    pub(super) fn run(&mut self, input: &Input) -> Result<(), Unwritten> {
        match input {
            Input::Boot(now, limits) => {
                self.limits = limits.clone();
                self.boot(*now)
            }
            Input::Timeout(now, refused, reclaim, _) => {
                self.room = Room::of(refused.clone());
                self.advance(*now)?;
                self.lose_damaged()?;
                self.dispatch()?;
                self.limit_winners()?;
                self.limit_retained()?;
                if *reclaim == Reclaim::Yes {
                    self.has_more_to_reclaim = self.reclaim_retained()?;
                }
                Ok(())
            }
            Input::Query(now) => {
                self.room = Room::of(Vec::new());
                self.advance(*now)?;
                self.dispatch()?;
                self.limit_winners()?;
                self.limit_retained()
            }
            Input::Release(now, durable, waiting) => {
                self.durable = *durable;
                self.synced(*now, *durable, waiting);
                Ok(())
            }
            Input::Leave(now, tokens) => {
                self.leases_begin(*now, tokens);
                Ok(())
            }
            Input::NotDelivered(streams) => {
                self.not_delivered(streams);
                Ok(())
            }
            Input::Rebase(now, refused) => {
                self.room = Room::of(refused.clone());
                self.rebase(*now)
            }
            Input::Relocated(now, payloads) => {
                self.advance_broker_time(*now);
                self.room = Room::of(Vec::new());
                payloads.iter().try_for_each(|payload| self.relocate(payload.as_ref()))
            }
            Input::Damaged(now, refused, damaged, _) => {
                self.room = Room::of(refused.clone());
                self.found_damaged(*now, damaged)
            }
            // Outputs of a replay are dropped, so any ticket will do.
            Input::Command(now, command, refused) => {
                self.command(*now, Default::default(), command, refused.clone()).map(drop)
            }
        }
    }

    /// Executes a command. Returns whether it did more than refuse or query.
    pub(super) fn command(
        &mut self,
        now: Now,
        ticket: Ticket,
        command: &Command,
        refused: Vec<RefusedAppend>,
    ) -> Result<bool, Unwritten> {
        self.room = Room::of(refused);
        self.advance(now)?;
        let before = self.room.is_short().then(|| Box::new(self.clone()));
        let result = match self.execute(command) {
            Ok(reply) => Ok(reply),
            Err(Stop::Refused(refusal)) => Err(refusal),
            Err(Stop::Unwritten(Unwritten::NoRoom(refusal))) => {
                if let Some(before) = before {
                    // A refusal for want of space has no effect, except that a token is not used again.
                    let (room, next_token) = (std::mem::take(&mut self.room), self.next_token);
                    *self = Self { room, next_token, ..*before };
                }
                Err(self.refusal_of(refusal))
            }
            Err(Stop::Unwritten(end)) => return Err(end),
        };
        let is_query = matches!(
            command,
            Command::ListTopics(ListTopics { .. })
                | Command::ListGroups(ListGroups { .. })
                | Command::DescribeTopic(DescribeTopic { .. })
                | Command::Peek(Peek { .. })
        );
        // Every store command consumes a token.
        let is_full = matches!(&result, Err(Refusal::Overloaded { full: Some(_), .. }));
        // A full partition may have groups deleted.
        let is_change = matches!(command, Command::Store(_)) || is_full || result.is_ok() && !is_query;
        // The attempts of a call without space are counted, also those of a command that is refused.
        let is_change = is_change || self.room.is_short();
        // A deletion, a seek or a redrive has ended leases.
        self.drop_ended_entries();
        self.expect(Expected::Reply { ticket, result });
        self.dispatch()?;
        self.limit_winners()?;
        self.limit_retained()?;
        Ok(is_change)
    }

    fn execute(&mut self, command: &Command) -> Result<ExpectedReply, Stop> {
        let reply = match command {
            Command::CreateTopic(CreateTopic { name, partitions, retention }) => {
                self.create_topic(name, *partitions, *retention)?
            }
            Command::ChangeRetention(ChangeRetention { name, age, bytes }) => {
                self.change_retention(name, *age, *bytes)?
            }
            Command::DeleteTopic(DeleteTopic { name }) => self.delete_topic(name)?,
            Command::ListTopics(ListTopics { tenant }) => self.list_topics(*tenant),
            Command::DescribeTopic(DescribeTopic { name }) => self.describe(name)?,
            Command::Produce(request) => self.produce(request)?,
            Command::Peek(Peek { topic, partition, offset, limit }) => {
                return self.peek(topic, *partition, *offset, *limit).map_err(Stop::from);
            }
            Command::Subscribe(request) => self.subscribe(request)?,
            Command::SetPrefetch(SetPrefetch { consumer, prefetch }) => self.set_prefetch(*consumer, *prefetch)?,
            Command::Unsubscribe(Unsubscribe { consumer }) => self.unsubscribe(*consumer)?,
            Command::CloseStream(CloseStream { consumer }) => self.close_stream(*consumer)?,
            Command::Ack(Ack(claim)) => self.ack(claim)?,
            Command::AckCumulative(request) => self.ack_cumulative(request)?,
            Command::ExpireLease(request) => self.expire(request)?,
            Command::Nack(Nack { claim, reason, retry }) => self.nack(claim, reason, *retry)?,
            Command::Extend(Extend { claim, lease }) => self.extend(claim, *lease)?,
            Command::Release(Release(claim)) => self.release(claim)?,
            Command::Withdraw(Withdraw(claim)) => self.withdraw(claim)?,
            Command::Complete(request) => self.complete(request)?,
            Command::Store(request) => return self.store_command(request),
            Command::CreateGroup(CreateGroup { topic, group, start }) => {
                let at = self.topic(topic)?;
                self.create_group(at, group, *start, GroupOrigin::Requested)?;
                Reply::Success
            }
            Command::DeleteGroup(DeleteGroup { topic, group }) => self.delete_group(topic, group)?,
            Command::ListGroups(ListGroups { topic }) => self.list_groups(topic)?,
            Command::Seek(Seek { topic, group, to }) => self.seek(topic, group, *to)?,
            Command::Pause(Pause { topic, group }) => self.pause(topic, group, true)?,
            Command::Resume(Resume { topic, group }) => self.pause(topic, group, false)?,
            Command::Purge(Purge { topic }) => self.purge(topic)?,
            Command::Redrive(Redrive { topic, which, limit }) => self.redrive(topic, which, *limit)?,
            Command::CreateKey(_)
            | Command::RevokeKey(_)
            | Command::BindKey(_)
            | Command::ListKeys(_)
            | Command::CreateTenant(_)
            | Command::DeleteTenant(_)
            | Command::ListTenants(_)
            | Command::ListAudit(_) => unreachable!("no client of a world has keys"),
        };
        Ok(ExpectedReply::Plain(reply))
    }
}
