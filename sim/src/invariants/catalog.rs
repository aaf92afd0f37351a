//! The catalog of all invariants: number, name and sentence, each written once.
//!
//! An invariant is checked by the function of its name, in one of the files beside this one. The number is the one in
//! `docs/simulation/invariants.md`; where one sentence is not enough to check a numbered invariant, several entries
//! share its number.

use super::verdict::Invariant;

macro_rules! catalog {
    ($($number:literal $constant:ident $name:ident: $sentence:literal;)*) => {
        $(
            #[doc = concat!($number, ": ", $sentence, ".")]
            pub const $constant: Invariant = Invariant { number: $number, name: stringify!($name), sentence: $sentence };
        )*

        /// All invariants, by number.
        pub const ALL: &[Invariant] = &[$($constant),*];

        /// The sentence of an invariant, for the documentation of the function that checks it.
        macro_rules! sentence {
            $(($name) => { concat!("**", $number, "**: ", $sentence, ".") };)*
        }
    };
}

catalog! {
    0 NEVER_PANICS never_panics: "the broker never panics";

    1 ACCEPTED_IS_STORED accepted_is_stored: "an acknowledged produce is stored";
    1 STORED_OR_TRIMMED stored_or_trimmed: "every position is either stored or trimmed";
    1 OFFSETS_ASCEND offsets_ascend: "offsets ascend within a partition and stay below the topic's next offset";
    1 ONE_MESSAGE_STATE one_message_state: "in a group a message is in exactly one state: ready, delayed, in flight or \
        acked";
    1 ACK_IS_JUSTIFIED ack_is_justified: "a message is acked in a group only by ack, complete, skip, dead letter, seek \
        or group start";
    1 SKIPPED_IS_ACKED skipped_is_acked: "a message that is answered as already done is acked in every group at once";
    1 SKIP_IS_TOLD skip_is_told: "a message that is not answered as already done is acked in no group at once";
    1 SKIP_IS_JUSTIFIED skip_is_justified: "a message is answered as already done only if every group was asked to ack \
        one of the same identity and requested topic";
    1 TRIMMED_STAYS_TRIMMED trimmed_stays_trimmed: "a trimmed message does not reappear";
    1 UNACKED_IS_STORED unacked_is_stored: "a message that a group has not acked is not trimmed";
    1 ACKED_IS_TRIMMED acked_is_trimmed: "a message acked by every group is trimmed unless retention keeps it";
    1 UNCONSUMED_IS_STORED unconsumed_is_stored: "in a topic without groups only a redrive or a purge removes a \
        message";
    1 PURGE_REMOVES_WHAT_WAS_THERE purge_removes_what_was_there: "a purge leaves no message that was stored when it was \
        decided";
    1 PURGE_COUNTS_WHAT_WAS_THERE purge_counts_what_was_there: "a purge reports the number of messages that were stored";

    2 GROUP_COUNTS_MATCH group_counts_match: "the counters of a group equal a recount of its messages";
    2 ACK_COUNT_MATCHES ack_count_matches: "a message counts the groups that acked it and is open until all have";
    2 LOAD_MATCHES load_matches: "the load of a partition equals a recount of its open messages and bytes";
    2 DESCRIPTION_MATCHES description_matches: "the description of a topic equals a recount of its messages";

    3 DELIVERED_WAS_ACCEPTED delivered_was_accepted: "every delivery is an accepted message, byte for byte";
    3 STORED_WAS_PRODUCED stored_was_produced: "every stored message was produced, byte for byte";

    4 OFFSET_IS_STABLE offset_is_stable: "an offset keeps its body, partition and position";
    4 PEEK_MATCHES peek_matches: "a peek returns the stored body of an offset";

    5 ACKED_NOT_REDELIVERED acked_not_redelivered: "a message is not delivered again after a confirmed ack, except \
        after a seek";
    5 PURGED_NOT_REDELIVERED purged_not_redelivered: "a purged message is never delivered again";
    5 CONFIRMED_ACK_HOLDS confirmed_ack_holds: "a confirmed ack stays in effect, except after a seek";

    6 STALE_CLAIM_IS_NOOP stale_claim_is_noop: "a claim that does not match the newest delivery changes nothing";
    6 LOSER_IS_REFUSED loser_is_refused: "as long as the winner of a message is remembered, a claim with another token \
        is not confirmed";
    6 EXPIRED_NOT_EXTENDED expired_not_extended: "an expired lease is not extended";

    7 TOKENS_INCREASE tokens_increase: "lease tokens increase, across all crashes";

    8 ONE_LEASE_HOLDER one_lease_holder: "a message has at most one lease holder in a group";

    9 OBSERVED_IN_FLIGHT observed_in_flight: "messages in flight stay within the limit, as seen by workers";
    9 LEASED_IN_FLIGHT leased_in_flight: "messages in flight stay within the limit, in the broker's state";
    9 WITHIN_PREFETCH within_prefetch: "a stream stays within its prefetch and its delivery limit";
    9 STREAM_IS_OPEN stream_is_open: "nothing is delivered to a closed stream";

    10 FIRST_DELIVERIES_ASCEND first_deliveries_ascend: "first deliveries of equal priority ascend within a partition";
    10 PRIORITY_FIRST priority_first: "a ready message of higher priority is delivered first";

    11 DEDUPED_WITHIN_WINDOW deduped_within_window: "within its dedupe window an identity has one offset";
    11 NEW_AFTER_WINDOW new_after_window: "after its dedupe window an identity is accepted as new";

    12 RERUN_IS_JUSTIFIED rerun_is_justified: "an effect runs again only under a grant issued after an expired lease, \
        a failure, a newer delivery or the end of its window";
    12 OUTPUT_STORED_ONCE output_stored_once: "an output of a completed step is stored exactly once";

    13 ATTEMPTS_INCREMENT attempts_increment: "attempts increment with every delivery";
    13 ATTEMPTS_RECOVERED attempts_recovered: "recovered attempts and tokens are not behind those delivered";
    13 LAST_ERROR_REPORTED last_error_reported: "a delivery reports the last failure reason";


    14 DEAD_NOT_REDELIVERED dead_not_redelivered: "a dead-lettered message is not delivered to its group again";
    14 EXHAUSTED_NOT_REDELIVERED exhausted_not_redelivered: "a message whose attempts are exhausted, or that its \
        worker ruled out to retry, is not delivered again";
    14 DEAD_LETTERED_ONCE dead_lettered_once: "a message is dead-lettered once per group and acked there";
    14 DEAD_LETTERED_AT_LIMIT dead_lettered_at_limit: "a message is dead-lettered at its last attempt or past its \
        deadline, not before";
    14 DEAD_LETTER_UNCHANGED dead_letter_unchanged: "a dead letter is the original message, except for fields that \
        must not act";
    14 REDRIVE_NAMES_ORIGIN redrive_names_origin: "a redriven message names its dead letter, which is removed, and has \
        its policy and its deadline";
    14 REDRIVEN_VISIBLE_TO_ORIGIN redriven_visible_to_origin: "a redriven message is visible only to the group that \
        failed it";
    14 REDRIVEN_DELIVERED_TO_ORIGIN redriven_delivered_to_origin: "a redriven message is delivered only to the group \
        that failed it";
    14 REDRIVE_WITHIN_LIMIT redrive_within_limit: "a redrive moves no more messages than its limit";
    14 REDRIVE_MOVES_WHAT_WAS_THERE redrive_moves_what_was_there: "a redrive of all moves only dead letters that were \
        stored when it was asked for";

    15 NOT_BEFORE_DUE not_before_due: "nothing is delivered before its delay, backoff or schedule";
    15 NOT_AFTER_DEADLINE not_after_deadline: "nothing is delivered after its deadline";
    15 TIME_IS_MONOTONIC time_is_monotonic: "time inside the broker is monotonic";
    15 WALL_IS_MONOTONIC wall_is_monotonic: "wall time inside the broker never runs backwards, except by a rebase";
    15 WALL_FOLLOWS_CLOCK wall_follows_clock: "wall time inside the broker agrees with the wall clock, or approaches it \
        at half speed";
    15 DEADLINE_ENDS_WAITING deadline_ends_waiting: "a message does not wait beyond its deadline";

    16 LEASE_WITHIN_LIMITS lease_within_limits: "a lease is neither shorter nor longer than the limits";
    16 DELAY_WITHIN_LIMIT delay_within_limit: "a delay beyond the limit is refused";
    16 ACCEPTED_WITHIN_LIMITS accepted_within_limits: "a message is accepted only into its partition and within the \
        limits";
    16 REFUSED_ONLY_WHEN_FULL refused_only_when_full: "a produce is refused for backpressure only when the partition \
        is full";
    16 REFUSAL_IS_NOOP refusal_is_noop: "a refused command writes no record";
    16 QUERY_IS_NOOP query_is_noop: "a query writes no record";
    16 RETAINED_BYTES retained_bytes: "retained messages stay within the retention size";
    16 RETAINED_AS_CONFIGURED retained_as_configured: "acked messages are kept as long as retention requires";
    16 RETAINED_WITHIN_BOUND retained_within_bound: "the retained messages of all topics stay within their memory";
    16 RETENTION_ENDS retention_ends: "acked messages older than the retention age are removed";
    16 RESERVE_IS_KEPT reserve_is_kept: "without another segment, what adds stored data leaves the reserve of the log, \
        and what changes a lease half of it";
    16 REFUSED_WITHOUT_ROOM refused_without_room: "the log refuses a record only if it does not fit beside what must \
        stay free";

    17 SYNCED_BEFORE_RELEASE synced_before_release: "nothing is released to a client before its records are synced";
    17 NO_SYNCED_LOSS no_synced_loss: "recovery finds everything that was synced";

    18 STATE_MATCHES_LOG state_matches_log: "the live state equals a replay of its log, by digest";
    18 RECOVERED_MATCHES_LOG recovered_matches_log: "the recovered state equals a replay of the written log, by digest";
    18 CLOSE_COMPLETES close_completes: "a clean shutdown completes";
    18 CLOSE_IS_RECOGNISED close_is_recognised: "recovery recognises a clean shutdown";

    19 RECOVERY_IS_IDEMPOTENT recovery_is_idempotent: "recovering twice gives the same result";
    19 RECOVERY_CRASH_IS_HARMLESS recovery_crash_is_harmless: "a crash during recovery changes nothing";

    19 WRITTEN_IN_ORDER written_in_order: "files are written, synced, named and removed in the order that recovery \
        relies on";

    20 SOUND_LOG_ACCEPTED sound_log_accepted: "recovery accepts every disk that honoured its contract";
    20 DAMAGE_IS_DETECTED damage_is_detected: "damage to data proven synced is refused or harmless";
    20 REFUSAL_IS_NEEDED refusal_is_needed: "a start is refused only for damage to what it needs";
    20 WHOLE_SNAPSHOTS_ARE_KEPT whole_snapshots_are_kept: "a start restores the newest whole snapshot and keeps the two \
        newest; a damaged one counts for nothing";
    20 SYNC_IS_RECORDED sync_is_recorded: "every frame records what was reported as synced before it, and no more than \
        was synced";
    20 IDLE_LOG_IS_MARKED idle_log_is_marked: "an idle log records within 100 ms what is synced";
    20 READ_ERROR_IS_REFUSED read_error_is_refused: "an unreadable sector is not taken for the end of a file";

    21 MATCHES_ORACLE matches_oracle: "every output equals the oracle's prediction";

    22 DETERMINISTIC check_determinism: "the same seed or trace gives the same run, by digest chain";

    23 SILENT_AFTER_FAILURE silent_after_failure: "after a log failure only what was durable before is released";
    23 REFUSED_AFTER_FAILURE refused_after_failure: "a command after a log failure is refused with that failure";
    23 SHORTAGE_IS_WAITED_OUT shortage_is_waited_out: "the log fails only after a failed operation, not on a full disk \
        nor for want of a descriptor";
    23 READ_FAILURE_IS_PASSING read_failure_is_passing: "a read that fails is repeated; a payload is lost only if \
        the disk has lost it";
    23 NOTHING_WRITTEN_AFTER_FAILURE nothing_written_after_failure: "after a log failure nothing more is written";
    23 ONE_REPLY one_reply: "every command gets one reply; after a log failure, only that failure";

    24 GRANT_TOKEN_IS_NEW grant_token_is_new: "every grant has a new token";
    24 ONE_LIVE_GRANT one_live_grant: "an effect has at most one live grant";
    24 FINAL_NOT_REGRANTED final_not_regranted: "an effect with a final outcome is not granted again before it may be \
        forgotten";
    24 NEWEST_GRANT_FINISHES newest_grant_finishes: "only the newest grant records an outcome";
    24 REQUEST_HASH_IS_STABLE request_hash_is_stable: "the request hash of an effect does not change";
    24 REPLAY_MATCHES_OUTCOME replay_matches_outcome: "a replay returns the recorded outcome";

    25 STEP_IS_ATOMIC step_is_atomic: "a completed step is whole: its message acked, its effect ended, its outputs \
        stored";
    25 REFUSED_STEP_LEAVES_NOTHING refused_step_leaves_nothing: "a step that was not completed leaves no output";
    25 STEP_REPLY_REPEATS step_reply_repeats: "repeating a completed step returns the same reply";

    26 NOT_STUCK not_stuck: "a deliverable message is delivered";
    26 TIMERS_ARE_SET timers_are_set: "whatever is due later has a timer, also if a full log refused it before";
    26 TIMERS_QUIESCE timers_quiesce: "repeated timeouts at one time come to an end";
    26 IO_QUIESCES io_quiesces: "repeated I/O at one time comes to an end";
    26 DRAINS drains: "without faults every message is delivered and acked";
    26 ACCEPTS_AGAIN accepts_again: "with free space a log takes records again, without traffic";

    27 SEGMENTS_ARE_CUT segments_are_cut: "a closed segment takes no more space than it holds";
    27 TRIMMED_BEHIND_DATA trimmed_behind_data: "a segment is cut only behind its last frame";
    27 SEGMENTS_ARE_FEW segments_are_few: "no more segments are begun without a snapshot than configured";
    27 RESTS_SMALL rests_small: "a log at rest has two segments; without live messages they are small";
    27 SNAPSHOT_IS_TAKEN snapshot_is_taken: "an idle broker has written less since its last snapshot than makes one due";
    27 COVERED_FILES_ARE_REMOVED covered_files_are_removed: "an idle broker keeps two snapshots and no segment that \
        the older one covers";

    27 LIVE_SEGMENT_STAYS live_segment_stays: "no segment is removed that holds a payload of a message, as the state is \
        or as a crash would leave it";
    27 LISTED_SEGMENT_STAYS listed_segment_stays: "no segment is removed to which one of the two snapshots refers";
    27 LIVE_BYTES_MATCH live_bytes_match: "a snapshot lists the segments of its payloads, each with its live bytes";
    27 GONE_IS_UNREFERRED gone_is_unreferred: "an output leaves without a payload only if no message refers to it any \
        more";
    27 LOST_WAS_DAMAGED lost_was_damaged: "a message is without its payload only if that was found damaged";
    27 ONLY_DAMAGED_IS_LOST only_damaged_is_lost: "of the payloads in a segment only those are lost whose records are \
        damaged, or stand between damaged ones";
    27 ROT_IS_FOUND rot_is_found: "damage under a live payload is found within the time of a scrub";
    27 READS_WHAT_IS_SYNCED reads_what_is_synced: "no byte of a segment is read that is not synced";
    27 RELOCATED_IS_MOVED relocated_is_moved: "nothing refers to where a relocated payload stood before";

    28 TALLIES_MATCH tallies_match: "every tally of the state equals a recount, and no empty table is kept";
    28 COUNTERS_MATCH counters_match: "every counter since the start equals a recount of records and replies";
    28 TIMERS_MATCH_STATE timers_match_state: "every timer that the state implies is set for its time, and no other";
    28 SWEEPS_ARE_SET sweeps_are_set: "whatever expires in a table is swept at its end, or a second later";
    28 QUEUES_MATCH_STATE queues_match_state: "the queues by priority and delay hold the open messages that have one, \
        and no other";
    28 READY_IS_OFFERED ready_is_offered: "a ready message is before its group's cursor, in a partition that is a \
        candidate, of a group that has work if it has credit";
    28 MEMORY_IS_BOUNDED memory_is_bounded: "payloads in memory stay within their bound, but for those that are not \
        synced";
    28 UNSYNCED_STAYS_IN_MEMORY unsynced_stays_in_memory: "a payload stays in memory until it is synced";
    28 STREAMS_MATCH_LEASES streams_match_leases: "credit, leases and unanswered deliveries of every stream equal a \
        recount";

    29 STREAMS_TAKE_TURNS streams_take_turns: "no stream gets a second delivery while another of its group, with credit \
        and never cut, waits for its first";
    29 PARTITIONS_TAKE_TURNS partitions_take_turns: "no partition is delivered from twice while another with a ready \
        message, below its in-flight limit, waits for its turn";
    29 ADMINISTRATION_ENDS administration_ends: "an administrative command takes no more records than there were \
        messages and groups when it was asked for";
    29 MAINTENANCE_ENDS maintenance_ends: "with only time passing, whatever expires is removed, and timers come to an end";

    30 ATTEMPT_WAS_SEEN attempt_was_seen: "no attempt is counted for a delivery that no client could have seen";
    30 DIES_OF_ITS_OWN_DELIVERY dies_of_its_own_delivery: "no message dies of a delivery that waited behind an \
        unanswered one, or earlier than its policy says";
    30 PRODUCED_IS_ACCOUNTED_FOR produced_is_accounted_for: "whatever was answered \"produced\" is delivered, \
        dead-lettered, expired or still there in every group";
    30 DONE_IS_THE_WINNERS done_is_the_winners: "a worker that showed a token and was told \"done\" is the one whose \
        token won, as long as that is remembered";
}

pub(super) use sentence;
