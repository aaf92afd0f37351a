//! `driftqd wal`: looking at a log, and saving what can be saved of a damaged one.
