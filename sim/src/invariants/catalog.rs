//! The list of everything that must always be true: number, name and sentence, each written once.
//!
//! A law is checked by the function of its name, in one of the files beside this one. The number is that of the invariant in
//! `SIMULATION.md`; where one sentence is not enough to check an invariant, several laws share its number.

use super::verdict::Invariant;

macro_rules! catalog {
    ($($number:literal $constant:ident $name:ident: $sentence:literal;)*) => {
        $(
            #[doc = concat!($number, ": ", $sentence, ".")]
            pub const $constant: Invariant = Invariant { number: $number, name: stringify!($name), sentence: $sentence };
        )*

        /// All laws, by number.
        pub const ALL: &[Invariant] = &[$($constant),*];

        /// The sentence of a law, for the documentation of the function that checks it.
        macro_rules! sentence {
            $(($name) => { concat!("**", $number, "**: ", $sentence, ".") };)*
        }
    };
}

catalog! {
    0 NEVER_PANICS never_panics: "the broker never panics";

    1 ACCEPTED_IS_KEPT accepted_is_kept: "a message whose producer was told of it is stored";
    1 ONE_PLACE one_place: "a stored message is kept or trimmed, never both, never neither";
    1 OFFSETS_RISE offsets_rise: "offsets rise within a partition, below the topic's next one";
    1 ONE_PHASE one_phase: "for a group a message is done, or held, or waiting, or ready: exactly one of them";
    1 END_IS_JUSTIFIED end_is_justified: "a message is done for a group only by ack, skip, death, seek or start";
    1 SKIPPED_IS_DONE skipped_is_done: "a message that is passed over because its identity is done is done as well";
    1 GONE_IS_GONE gone_is_gone: "what is trimmed does not come back";
    1 UNDONE_IS_KEPT undone_is_kept: "what a group is not done with is not trimmed";
    1 DONE_IS_LET_GO done_is_let_go: "what every group is done with is trimmed, unless done messages are to be kept";
    1 UNREAD_IS_KEPT unread_is_kept: "where nobody consumes, only a redrive takes a message away";

    2 GROUP_ADDS_UP group_adds_up: "a group's counts are those of what is leased, waiting and not yet begun";
    2 DONE_IN_ADDS_UP done_in_adds_up: "a message counts the groups that are done with it, and is open until all are";
    2 LOAD_ADDS_UP load_adds_up: "a partition's load is that of its open messages, counted one by one";
    2 COUNTS_ARE_TRUE counts_are_true: "what a topic says of itself is what is in it, counted one by one";

    3 WAS_ACCEPTED was_accepted: "nothing is delivered that was not accepted, byte for byte";
    3 WAS_SENT was_sent: "nothing is stored that was not produced, byte for byte";

    4 ONE_BODY one_body: "an offset never names another body, partition or position";
    4 PEEKED_IS_STORED peeked_is_stored: "an offset never shows another body";

    5 ACKED_STAYS_AWAY acked_stays_away: "nothing comes back after a confirmed ack, but by seek";
    5 ACKED_IS_DONE acked_is_done: "what was confirmed as acked is done";

    6 STALE_CHANGES_NOTHING stale_changes_nothing: "a claim that is not the newest delivery's changes nothing";
    6 ENDED_IS_ENDED ended_is_ended: "a lease that has ended is not made longer";

    7 TOKENS_RISE tokens_rise: "tokens rise, across all crashes";

    8 ONE_HOLDER one_holder: "a message has one live holder in a group";

    9 SEEN_IN_FLIGHT seen_in_flight: "no more is in flight than the limit, by what workers saw";
    9 LEASED_IN_FLIGHT leased_in_flight: "no more is in flight than the limit, inside";
    9 WITHIN_PREFETCH within_prefetch: "no stream holds more than its prefetch, nor gets more than it asked for in all";
    9 STREAM_IS_THERE stream_is_there: "nothing is delivered to a stream that is gone";

    10 FIRSTS_ASCEND firsts_ascend: "first deliveries of equal priority ascend within a partition";
    10 PRIORITY_FIRST priority_first: "what is ready and has a higher priority goes first";

    11 ONE_OFFSET one_offset: "one identity has one offset inside its window";
    11 WINDOW_ENDS window_ends: "outside its window an identity is new";

    12 RUNS_FOR_A_REASON runs_for_a_reason: "an effect is run again only under a grant given after a lease ended, a failure, a newer delivery, or the end of its window";
    12 MADE_ONCE made_once: "a message made by a completed step is stored exactly once";

    13 ATTEMPTS_RISE attempts_rise: "attempts rise by one for every delivery";
    13 ATTEMPTS_KEPT attempts_kept: "attempts and tokens are never behind what a worker saw";
    13 ERROR_IS_KEPT error_is_kept: "a delivery tells the last reason a worker gave";

    14 DEAD_STAYS_AWAY dead_stays_away: "a dead letter is never delivered to its group again";
    14 SPENT_STAYS_AWAY spent_stays_away: "what has failed as often as it may is delivered no more";
    14 DEAD_ONCE dead_once: "a message enters the dead letters of a group once, and is done for it then";
    14 DEAD_AT_THE_LIMIT dead_at_the_limit: "a message dies at its last attempt or past its deadline, not before";
    14 DEAD_UNCHANGED dead_unchanged: "a dead letter is the message, unchanged but for what must not act";
    14 REDRIVE_NAMES_ORIGIN redrive_names_origin: "a redriven message names the dead letter it was, which is gone then";
    14 ORIGIN_SEES_ALONE origin_sees_alone: "a redriven message is seen by the group that failed it alone";
    14 ORIGIN_GETS_ALONE origin_gets_alone: "a redriven message is delivered to the group that failed it alone";
    14 REDRIVE_BOUNDED redrive_bounded: "a redrive makes no more live than it was asked to";

    15 NOT_EARLY not_early: "nothing is delivered before its delay, backoff or schedule";
    15 NOT_LATE not_late: "nothing is delivered past its deadline";
    15 TIME_RISES time_rises: "time inside never runs backwards";

    16 ONLY_WITH_ROOM only_with_room: "a message is accepted only where there is room, and there alone";
    16 REFUSED_WHEN_FULL refused_when_full: "a message is refused for want of room only where there is none";
    16 REFUSED_IS_NOTHING refused_is_nothing: "a refusal has no effect";
    16 LOOKING_IS_NOTHING looking_is_nothing: "looking changes nothing";
    16 RETAINED_BYTES retained_bytes: "no more done bytes are kept than asked for";
    16 RETAINED_WHILE_ASKED retained_while_asked: "done messages are kept as long as asked for";
    16 GONE_IN_TIME gone_in_time: "done messages that grew too old are let go of";

    17 SYNCED_FIRST synced_first: "nothing seen by a client lies beyond what the disk has synced";
    17 NOTHING_LOST nothing_lost: "nothing that the disk has synced is missing after a start";

    18 LIVE_IS_LOG live_is_log: "the live state is what its log says, by digest";
    18 RECOVERED_IS_LIVE recovered_is_live: "what is recovered is the state that was, by digest";
    18 CLOSE_ENDS close_ends: "an orderly stop brings the log to rest";
    18 CLOSED_IS_FOUND closed_is_found: "a log closed in an orderly way is found so";

    19 TWICE_THE_SAME twice_the_same: "recovering twice changes nothing";
    19 DYING_CHANGES_NOTHING dying_changes_nothing: "dying while recovering changes nothing";

    20 NEVER_REFUSED never_refused: "a disk that kept its promises is never refused";
    20 DAMAGE_IS_NOTICED damage_is_noticed: "damage to what is proven to have been synced is refused, or does no harm";
    20 UNREAD_IS_REFUSED unread_is_refused: "a sector that cannot be read is not the end of a file";

    21 MODEL_KNOWS model_knows: "every answer is the one a naive model of the specification gives";

    22 REPEAT check_determinism: "the same seed or trace gives the same life, by digest chain";

    23 FAILED_IS_SILENT failed_is_silent: "after a failed log nothing is released but what was durable before";
    23 FAILED_REFUSES failed_refuses: "what is asked after the log has failed is refused for that";
    23 ANSWERED_ONCE answered_once: "every command is answered once; after a failed log, only with that";

    24 GRANT_IS_NEW grant_is_new: "a grant has a token that no other had";
    24 ONE_GRANT one_grant: "an effect has one live grant";
    24 ENDED_STAYS ended_stays: "an effect that has ended for good is not granted again before it may be forgotten";
    24 NEWEST_ENDS newest_ends: "only the newest grant says how an effect has ended";
    24 SAME_REQUEST same_request: "the request behind an effect never changes";
    24 REPLAY_IS_TRUE replay_is_true: "a replay tells how the effect has ended";

    25 WHOLE_STEP whole_step: "a completed step is all there: its message done, its effect ended, its messages stored";
    25 NO_PART_OF_A_STEP no_part_of_a_step: "of a step that was not completed nothing is there";
    25 SAME_ANSWER same_answer: "who has completed a step is given the same answer again";

    26 NOT_STUCK not_stuck: "what can be delivered is not left lying";
    26 NEVER_SPINS never_spins: "a broker that is told the time has done at some time";
    26 WORK_ENDS work_ends: "work that the broker asks for comes to an end";
    26 DRAINS drains: "with nothing in the way, everything is delivered and done in the end";
}

pub(super) use sentence;
