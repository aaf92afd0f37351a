//! Every command, every field of commands, records and snapshots, set and unset, and every length near its limit is
//! generated. The table is derived from the types: a field that no run sets fails.
//!
//! `DRIFTQ_WRITE_COVERAGE=1 cargo test -p driftq-sim --test it coverage` writes `docs/simulation/coverage.md`.

mod debug;
mod lengths;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use driftq_core::Output;
use driftq_core::codec::record::decode;
use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, SegmentHeader, SegmentReader, Storage as _, read_snapshot, read_whole};
use driftq_core::record::{Event, Image, Record};
use driftq_core::types::{Body, FrameNumber};
use driftq_sim::actions::Action;
use driftq_sim::disk::Disk;
use driftq_sim::swarm::{Profile, Swarm};
use driftq_sim::world::{Checks, TapEvent, World};

use self::debug::{Seen, parse};
use self::lengths::{LENGTHS, Lengths, NOT_LENGTHS};
use self::types::{Definition, Types};

/// Commands, records, snapshots, and the metadata that records and snapshots hold packed.
const ROOTS: [&str; 4] = ["Command", "Event", "Image", "Metadata"];

/// The seeds of each profile whose entries the document counts.
const COUNTED: [(Profile, u64); 2] = [(Profile::Default, 500), (Profile::Effects, 400)];

/// All entries are generated within this many seeds.
const SEEDS_MAX: u64 = 3_000;

/// Seeds that together generate every entry. They are run first: others only if these no longer suffice. The test
/// prints which seeds generated what none before did.
const FIRST: [u64; 22] = [66, 72, 90, 123, 148, 423, 453, 680, 1_250, 0, 1, 3, 5, 6, 8, 9, 16, 17, 19, 31, 300, 527];

/// Entries that are not generated, and why.
const NEVER: &[(&str, &str)] = &[
    ("Deadline.text no text", "it is what a client sent, parsed as a time"),
    ("DeliveryState.attempts zero", "a delivery is an attempt"),
    ("EffectConclusion.window zero", "an effect is kept for at least a millisecond"),
    ("Event::CompletionsExpired.count zero", NOTHING),
    ("Event::CumulativelyAcked.acks empty", NOTHING),
    ("Event::DedupeExpired.count zero", NOTHING),
    ("Event::EffectsExpired.count zero", NOTHING),
    ("Event::GroupSought.targets empty", PARTITION),
    ("Event::Nacked.reason no text", EMPTY_REASON),
    ("Event::Purged.ends empty", PARTITION),
    ("Event::ReasonNoted.reason no text", EMPTY_REASON),
    ("Event::Redriven.offset zero", "the message that failed has an earlier offset"),
    ("Event::Restored", "snapshots hold images, see there"),
    ("Event::TopicCreated.partitions zero", PARTITION),
    ("Event::WinnersExpired.count zero", NOTHING),
    ("Identity.tenant no text", "an empty tenant is the default one"),
    ("Image::DedupeEntry.key no text", "an empty key is no identity"),
    ("Image::DedupeEntry.tenant no text", "an empty tenant is the default one"),
    ("Image::Partition.last_offset unset", "written once the partition has had a message"),
    ("Image::Partition.next_position zero", "written once the partition has had a message"),
    ("Image::Replayed.below zero", NOTHING),
    ("Image::Topic.partitions zero", PARTITION),
    ("LastError::Reason.0 no text", EMPTY_REASON),
    ("Produce.value no bytes", "messages are told apart by their values; the core's tests have it"),
    ("RedriveOrigin.count zero", "a redrive counts itself"),
    ("RedriveRest.below zero", NOTHING),
    ("RedriveSelection::Offsets.0 empty", "the server takes it for all"),
    ("RunImage.end zero", "a run lies above the floor"),
    ("RunImage.last_offset zero", "a run lies above the floor"),
    ("RunImage.start zero", "a run lies above the floor"),
    ("StoredResult.payload unset", "no result is lost: damage under it is found first"),
    ("PayloadRef.value_len zero", "the value of every message has its number"),
    ("DecisionFields.lost no text", DAMAGE),
    ("Metadata.lost no text", DAMAGE),
    ("PayloadLost.damage no text", DAMAGE),
    ("PayloadLost.referrers empty", NOTHING),
    ("Relocated.referrers empty", NOTHING),
    ("ListTopics.tenant nonzero", KEYS),
    ("Command::BindKey", KEYS),
    ("Command::CreateKey", KEYS),
    ("Command::CreateTenant", KEYS),
    ("Command::DeleteTenant", KEYS),
    ("Command::ListAudit", KEYS),
    ("Command::ListKeys", KEYS),
    ("Command::ListTenants", KEYS),
    ("Command::RevokeKey", KEYS),
    ("Event::Audited", KEYS),
    ("Event::KeyBound", KEYS),
    ("Event::KeyBound.certificate_san set", KEYS),
    ("Event::KeyBound.certificate_san unset", KEYS),
    ("Event::KeyCreated", KEYS),
    ("Event::KeyRevoked", KEYS),
    ("Event::TenantCreated", KEYS),
    ("Event::TenantCreated.tenant nonzero", KEYS),
    ("Event::TenantCreated.tenant zero", KEYS),
    ("Event::TenantDeleted", KEYS),
    ("Event::TenantDeleted.tenant nonzero", KEYS),
    ("Event::TenantDeleted.tenant zero", KEYS),
    ("Image::Access", KEYS),
    ("Image::Access.last_tenant nonzero", KEYS),
    ("Image::Access.last_tenant zero", KEYS),
    ("Image::Access.next_audit nonzero", KEYS),
    ("Image::Access.next_audit zero", KEYS),
    ("Image::Audit", KEYS),
    ("Image::Key", KEYS),
    ("Image::Tenant", KEYS),
    ("Image::Tenant.tenant nonzero", KEYS),
    ("Image::Tenant.tenant zero", KEYS),
];

const DAMAGE: &str = "the damage to a payload is always described";

const KEYS: &str = "no client of a world has a key";
const NOTHING: &str = "a record of nothing is not written";
const PARTITION: &str = "a topic has a partition";
const EMPTY_REASON: &str = "an empty reason is none";

fn core() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src")
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/simulation/coverage.md")
}

fn types() -> Types {
    let core = core();
    Types::parse(&[&core.join("command"), &core.join("record"), &core.join("types")])
}

/// What the runs have generated.
#[derive(Default)]
struct Generated {
    seen: Seen,
    lengths: Lengths,
}

/// Runs seeds until every entry is generated.
fn generate_all(types: &Types) -> Generated {
    let mut generated = Generated::default();
    let entries = types.entries(&ROOTS);
    let mut missed = missing(&entries, &generated).len();
    for seed in FIRST.into_iter().chain((0..SEEDS_MAX).filter(|seed| !FIRST.contains(seed))) {
        if missed == 0 {
            break;
        }
        COUNTED.iter().for_each(|(profile, _)| run(seed, *profile, types, &mut generated));
        let before = std::mem::replace(&mut missed, missing(&entries, &generated).len());
        if missed < before {
            println!("seed {seed} generates {} entries that none before did; {missed} are left", before - missed);
        }
    }
    generated
}

/// What the seeds generate whose entries the document counts.
fn generate_counted(types: &Types) -> Generated {
    let mut generated = Generated::default();
    for (profile, seeds) in COUNTED {
        (0..seeds).for_each(|seed| run(seed, profile, types, &mut generated));
    }
    generated
}

fn run(seed: u64, profile: Profile, types: &Types, generated: &mut Generated) {
    let mut swarm = Swarm::new(seed, profile);
    let mut world = World::new(swarm.setup(), NoFaults, Checks { oracle: false }).expect("the world starts");
    world.enable_tap();
    let (mut last, mut snapshots) = (FrameNumber(0), BTreeSet::new());
    for nth in 0..swarm.actions() {
        let action = swarm.next(&world);
        let limits = world.limits();
        world.apply(&action).expect("no invariant is violated");
        for event in world.take_tap_events() {
            match event {
                TapEvent::Command(_, command) => {
                    look_at(types, &mut generated.seen, "Command", &command);
                    generated.lengths.observe(&command, &limits);
                }
                TapEvent::Output { output: Output::Deliver { delivery, .. }, .. } => {
                    add_body(types, &mut generated.seen, &delivery.body);
                }
                _ => {}
            }
        }
        // Before segments are removed, and before a crash takes back what was not synced.
        if nth % 16 == 0 || matches!(action, Action::Crash { .. }) {
            let mut disk = world.disk().clone();
            read_records(&mut disk, &mut last, |record| add_event(types, &mut generated.seen, &record.event));
            read_images(&mut disk, &mut snapshots, |image| add_image(types, &mut generated.seen, image));
        }
    }
}

fn look_at(types: &Types, seen: &mut Seen, name: &str, value: &impl std::fmt::Debug) {
    let shown = format!("{value:?}");
    if seen.wants(name, &shown) {
        seen.add(types, name, &parse(&shown));
    }
}

fn add_event(types: &Types, seen: &mut Seen, event: &Event) {
    look_at(types, seen, "Event", event);
    match event {
        Event::Produced { body, .. } => add_body(types, seen, body),
        Event::Completed(step) => {
            let stored = step.outputs.iter().filter_map(|output| output.stored.as_ref());
            stored.for_each(|stored| add_body(types, seen, &stored.body));
        }
        _ => {}
    }
}

fn add_image(types: &Types, seen: &mut Seen, image: &Image) {
    look_at(types, seen, "Image", image);
}

fn add_body(types: &Types, seen: &mut Seen, body: &Body) {
    look_at(types, seen, "Metadata", &body.metadata());
}

/// The records after `last`, which becomes the newest.
fn read_records(disk: &mut Disk, last: &mut FrameNumber, mut each: impl FnMut(&Record)) {
    let files = disk.list().expect("the disk works");
    let mut bytes = Vec::new();
    for info in files.iter().filter(|info| matches!(info.file, FileId::Segment(_))) {
        if read_whole(disk, info.file, &mut bytes).is_err() {
            continue;
        }
        let Ok(header) = SegmentHeader::decode(&bytes) else { continue };
        let reader = SegmentReader::new(&header, &bytes);
        for frame in reader {
            if !frame.is_record() || frame.head.number <= *last {
                continue;
            }
            *last = frame.head.number;
            each(&decode(frame.head.kind, frame.head.version, frame.payload).expect("the broker wrote it"));
        }
    }
}

/// The images of snapshots that were not read before.
fn read_images(disk: &mut Disk, known: &mut BTreeSet<FrameNumber>, mut each: impl FnMut(&Image)) {
    for info in disk.list().expect("the disk works") {
        let FileId::Snapshot(number) = info.file else { continue };
        if !known.insert(number) {
            continue;
        }
        let _ = read_snapshot(disk, number, &mut Vec::new(), |kind, version, payload| -> Result<(), ()> {
            if let Ok(Record { event: Event::Restored(image), .. }) = decode(kind, version, payload) {
                each(&image);
            }
            Ok(())
        });
    }
}

/// Entries that should have been generated and were not.
fn missing(entries: &BTreeSet<String>, generated: &Generated) -> Vec<String> {
    let missing =
        table(entries, generated).into_iter().filter(|(entry, count)| *count == 0 && is_never(entry).is_none());
    missing.map(|(entry, _)| entry).collect()
}

/// All entries, with how often each was generated.
fn table(entries: &BTreeSet<String>, generated: &Generated) -> BTreeMap<String, u64> {
    let mut table: BTreeMap<String, u64> = BTreeMap::new();
    for entry in entries {
        let count = generated.seen.entries.get(entry).copied().unwrap_or_default();
        table.insert(entry.clone(), count);
    }
    table.extend(generated.lengths.entries());
    table
}

fn is_never(entry: &str) -> Option<&'static str> {
    NEVER.iter().find(|(never, _)| *never == entry).map(|(_, reason)| *reason)
}

/// A count as its order of magnitude, so that the document rarely changes.
fn magnitude(count: u64) -> &'static str {
    match count {
        0 => "never",
        1..10 => "≥ 1",
        10..100 => "≥ 10",
        100..1_000 => "≥ 100",
        1_000..10_000 => "≥ 1,000",
        _ => "≥ 10,000",
    }
}

#[test]
fn every_field_and_variant_is_generated_set_and_unset() {
    let types = types();
    let missing = missing(&types.entries(&ROOTS), &generate_all(&types));
    assert!(missing.is_empty(), "{} entries are never generated:\n{}", missing.len(), missing.join("\n"));
}

#[test]
fn what_is_listed_as_never_generated_exists() {
    let table = table(&types().entries(&ROOTS), &Generated::default());
    for (entry, _) in NEVER {
        assert!(table.contains_key(*entry), "{entry}");
    }
}

#[test]
fn every_limit_is_a_length_or_is_listed() {
    let core = core();
    let types = Types::parse(&[&core.join("types"), &core.join("command")]);
    let Definition::Struct(fields) = types.get("Limits") else { panic!("Limits is a struct") };
    let fields: BTreeSet<_> = fields.iter().map(|(field, _)| field.as_str()).collect();
    let listed: BTreeSet<_> = LENGTHS.iter().copied().chain(NOT_LENGTHS.iter().map(|(field, _)| *field)).collect();
    assert_eq!(fields, listed);
}

#[test]
fn document_names_exactly_these_entries() {
    if std::env::var_os("DRIFTQ_WRITE_COVERAGE").is_some() {
        fs::write(document(), render()).expect("the document can be written");
    }
    let text = fs::read_to_string(document()).expect("the document exists");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let found: BTreeSet<_> = rows.map(str::to_owned).collect();
    let expected: BTreeSet<_> = table(&types().entries(&ROOTS), &Generated::default()).into_keys().collect();
    let command = "DRIFTQ_WRITE_COVERAGE=1 cargo test -p driftq-sim --test it coverage";
    let difference: Vec<_> = found.symmetric_difference(&expected).collect();
    assert!(difference.is_empty(), "write it anew with {command}: {difference:#?}");
}

fn render() -> String {
    let mut text = String::from(INTRODUCTION);
    let types = types();
    for (entry, count) in table(&types.entries(&ROOTS), &generate_counted(&types)) {
        let seen = is_never(&entry).map_or(magnitude(count).to_owned(), |reason| format!("never: {reason}"));
        let _ = writeln!(text, "| `{entry}` | {seen} |");
    }
    text
}

const INTRODUCTION: &str = "\
# What is generated

Derived from the types of the core: every command, record and image of a snapshot, every field of them set and unset,
every variant of every enum, and lengths one below, at and one above each limit, with how often 500 seeds of the default
profile and 400 of the effects profile generate it. A field that no run sets fails `cargo test -p driftq-sim --test it
coverage`, which writes this page with `DRIFTQ_WRITE_COVERAGE=1`.

| entry | generated |
|---|---|
";
