//! The categories of the budget, and which code belongs to which.

use super::symbol::{Origin, Place};

/// What code is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Category {
    /// The HTTP library and what it needs.
    Http,
    /// The runtime.
    Runtime,
    /// Parsing and writing JSON.
    Json,
    /// The server's handlers and its driver.
    Server,
    /// The core: decisions, state, index, pipeline.
    Core,
    /// Records, frames and checksums.
    Codec,
    /// What the threads do that write, sync and read.
    LogThreads,
    /// The allocator.
    Allocation,
    /// Moving bytes.
    Copies,
    /// Code of libraries that every category uses, where its caller is not known.
    Shared,
    /// In the kernel: sockets.
    KernelNetwork,
    /// In the kernel: files and disks.
    KernelDisk,
    /// In the kernel: waiting and waking.
    KernelScheduling,
    /// In the kernel: the rest.
    KernelOther,
    /// What is not assigned.
    Other,
}

impl Category {
    /// All of them, in the order of a table.
    pub(crate) const ALL: [Self; 15] = [
        Self::Http,
        Self::Runtime,
        Self::Json,
        Self::Server,
        Self::Core,
        Self::Codec,
        Self::LogThreads,
        Self::Allocation,
        Self::Copies,
        Self::Shared,
        Self::KernelNetwork,
        Self::KernelDisk,
        Self::KernelScheduling,
        Self::KernelOther,
        Self::Other,
    ];

    /// The label of its row.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Http => "hyper, http, httparse, bytes",
            Self::Runtime => "tokio, mio",
            Self::Json => "JSON",
            Self::Server => "handlers and driver",
            Self::Core => "core: decide, apply, index, pipeline",
            Self::Codec => "codec, CRC, log framing",
            Self::LogThreads => "log threads",
            Self::Allocation => "allocation",
            Self::Copies => "memcpy, memset, memcmp",
            Self::Shared => "standard library, C library",
            Self::KernelNetwork => "kernel: network",
            Self::KernelDisk => "kernel: disk",
            Self::KernelScheduling => "kernel: scheduling",
            Self::KernelOther => "kernel: other",
            Self::Other => "other",
        }
    }

    /// Its position in a table.
    pub(crate) fn position(self) -> u16 {
        self as u16
    }
}

/// To which category code belongs, as far as its name or its file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assigned {
    /// To this one.
    To(Category),
    /// To that of its caller: it is code of a library that all of them use.
    Caller,
    /// To none: its name is not known here.
    Nothing,
}

/// Crates by category. Crates that are not named anywhere here belong to none.
#[rustfmt::skip]
const CRATES: &[(Category, &[&str])] = &[
    (Category::Http, &[
        "hyper", "hyper_util", "http", "http_body", "http_body_util", "httparse", "httpdate", "bytes", "h2",
        "percent_encoding", "want", "atomic_waker", "indexmap",
    ]),
    (Category::Runtime, &[
        "tokio", "tokio_util", "mio", "socket2", "futures_core", "futures_channel", "futures_util", "futures_task",
        "parking_lot", "parking_lot_core", "lock_api", "signal_hook", "signal_hook_registry",
    ]),
    (Category::Json, &["serde_json", "serde", "serde_core", "itoa", "ryu", "zmij"]),
    (Category::Server, &["driftq_server", "driftqd", "jiff", "prometheus_client"]),
    (Category::Core, &["driftq_core", "sha2", "digest", "block_buffer", "crypto_common", "generic_array"]),
    (Category::Codec, &["crc32fast"]),
    (Category::LogThreads, &["driftq_files"]),
    (Category::Allocation, &["mimalloc", "libmimalloc_sys", "tikv_jemallocator", "tikv_jemalloc_sys"]),
];

/// Crates that all of them use.
#[rustfmt::skip]
const SHARED_CRATES: &[&str] = &[
    "core", "alloc", "std", "hashbrown", "memchr", "slab", "smallvec", "once_cell", "tracing", "tracing_core", "log",
    "core_arch", "core_simd", "std_detect", "rustix", "linux_raw_sys", "libc", "pin_project_lite", "scopeguard",
    "compiler_builtins", "equivalent", "either",
];

/// Modules of a crate that belong to another category than the crate.
#[rustfmt::skip]
const MODULES: &[(&str, &str, Category)] = &[
    ("driftq_core", "codec", Category::Codec),
    ("driftq_core", "log", Category::Codec),
    ("driftq_core", "log::storage", Category::LogThreads),
    ("driftq_core", "pipeline::job", Category::LogThreads),
    ("driftq_core", "wire", Category::Codec),
    ("driftq_server", "base64", Category::Json),
    ("driftq_server", "driver::affinity", Category::LogThreads),
    ("driftq_server", "driver::io_threads", Category::LogThreads),
    ("driftq_server", "http::claim_fields", Category::Json),
    ("driftq_server", "http::fields", Category::Json),
    ("driftq_server", "http::message_fields", Category::Json),
    ("driftq_server", "json", Category::Json),
    ("driftq_server", "plain_json", Category::Json),
    ("std", "sys::alloc", Category::Allocation),
];

/// The allocator's functions, and prefixes of them.
#[rustfmt::skip]
const ALLOCATOR: &[&str] = &[
    "malloc", "calloc", "realloc", "free", "cfree", "memalign", "posix_memalign", "aligned_alloc", "reallocarray",
    "sysmalloc", "systrim.isra.0", "unlink_chunk", "unlink_chunk.isra.0", "grow_heap", "heap_trim", "mremap_chunk",
];
#[rustfmt::skip]
const ALLOCATOR_PREFIXES: &[&str] = &[
    "_int_", "malloc_", "tcache_", "arena_", "ptmalloc_", "__libc_malloc", "__libc_free", "__libc_calloc",
    "__libc_realloc", "__rust_alloc", "__rust_dealloc", "__rust_realloc", "__rust_no_alloc", "__rdl_", "__rg_", "mi_",
    "_mi_", "_rjem_", "je_", "systrim", "alloc_new_heap", "new_heap",
];
/// Functions that move, set or compare bytes have one of these in their names.
const COPIES: &[&str] = &["memcpy", "memmove", "memset", "memcmp", "bcmp", "bzero"];

/// What functions of the kernel begin with.
#[rustfmt::skip]
const KERNEL_NETWORK: &[&str] = &[
    "tcp_", "__tcp", "inet", "__inet", "ip_", "__ip_", "ipv4_", "sock", "__sock", "sk_", "__sk_", "skb", "__skb",
    "___skb", "alloc_skb", "__alloc_skb", "kfree_skb", "consume_skb", "napi", "__napi", "net_", "netif", "__netif",
    "dev_", "__dev_", "process_backlog", "loopback", "eth_", "nf_", "raw_local", "dst_", "fib_", "neigh_",
    "security_sock", "__sys_sendto", "__x64_sys_sendto", "__sys_recvfrom", "__x64_sys_recvfrom", "simple_copy_to_iter",
    "qdisc", "rtnl", "validate_xmit", "enqueue_to_backlog", "bpf_", "release_sock", "lock_sock",
];
#[rustfmt::skip]
const KERNEL_DISK: &[&str] = &[
    "ext4", "__ext4", "jbd2", "__jbd2", "xfs", "btrfs", "blk", "__blk", "bio", "__bio", "submit_bio", "virtio",
    "virtblk", "vring", "virtqueue", "vp_", "iowrite", "nvme", "scsi", "mq_", "dd_", "wbt", "folio", "__folio",
    "filemap", "__filemap", "iomap", "generic_perform_write", "generic_write", "writeback", "do_writepages",
    "write_cache", "mpage", "vfs_fsync", "__x64_sys_fdatasync", "do_fsync", "file_write_and_wait", "__mark_inode",
    "mark_buffer", "submit_bh", "__submit", "fault_in", "balance_dirty", "domain_dirty", "block_write", "__block_write",
    "create_empty_buffers", "xas_", "__x64_sys_pwrite", "__x64_sys_write", "vfs_write", "vfs_read", "sbitmap", "dma_",
    "elv_", "__rq_", "rq_",
];
#[rustfmt::skip]
const KERNEL_SCHEDULING: &[&str] = &[
    "schedule", "__schedule", "try_to_wake_up", "ttwu", "wake_", "__wake", "wait_", "autoremove_wake", "default_wake",
    "futex", "__futex", "do_futex", "__x64_sys_futex", "ep_", "__ep_", "eventpoll", "epoll", "do_epoll", "eventfd",
    "__x64_sys_epoll", "finish_task_switch", "switch_", "__switch", "pick_", "select_task", "select_idle", "enqueue_",
    "dequeue_", "update_", "__update", "put_prev", "set_next", "check_preempt", "resched", "hrtimer", "__hrtimer",
    "psi_", "sched_", "__sched", "dl_", "place_entity", "reweight", "pull_", "newidle", "native_send_call", "x2apic",
    "prepare_to", "finish_wait", "add_wait", "remove_wait", "poll_", "cpuacct", "tick_", "nohz", "exit_to_user",
    "load_balance", "__set_cpus", "set_cpus", "affine", "__x64_sys_sched",
];

impl Assigned {
    /// By the name of a function.
    pub(crate) fn by_symbol(symbol: &str) -> Self {
        match Origin::of_symbol(symbol) {
            Origin::Rust(places) => by_places(&places),
            Origin::C(name) => by_c_name(&name),
            Origin::Unknown => Self::Nothing,
        }
    }

    /// By the path of a source file.
    pub(crate) fn by_file(path: &str) -> Self {
        if path.ends_with("malloc.c") || path.ends_with("arena.c") {
            return Self::To(Category::Allocation);
        }
        Place::of_file(path).map_or(Self::Caller, |place| by_places(&[place]))
    }
}

/// The first place says where code is from. Code of the standard library that is made for a type of another crate
/// belongs to that crate.
fn by_places(places: &[Place]) -> Assigned {
    for place in places {
        match by_place(place) {
            Assigned::Caller => {}
            Assigned::Nothing if places.first() != Some(place) => {}
            assigned => return assigned,
        }
    }
    Assigned::Caller
}

fn by_place(place: &Place) -> Assigned {
    let of_module = MODULES.iter().filter(|(of, module, _)| *of == place.of && place.is_in(module));
    if let Some((.., category)) = of_module.max_by_key(|(_, module, _)| module.len()) {
        return Assigned::To(*category);
    }
    if SHARED_CRATES.contains(&place.of.as_str()) {
        return Assigned::Caller;
    }
    let of_crate = CRATES.iter().find(|(_, crates)| crates.contains(&place.of.as_str()));
    of_crate.map_or(Assigned::Nothing, |(category, _)| Assigned::To(*category))
}

fn by_c_name(name: &str) -> Assigned {
    if ALLOCATOR.contains(&name) || has_prefix(name, ALLOCATOR_PREFIXES) {
        return Assigned::To(Category::Allocation);
    }
    if COPIES.iter().any(|part| name.contains(part)) {
        return Assigned::To(Category::Copies);
    }
    Assigned::Caller
}

fn has_prefix(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// The category of a function of the kernel, on a thread that does nothing but files or on another one.
pub(crate) fn of_kernel(symbol: &str, is_file_thread: bool) -> Category {
    if has_prefix(symbol, KERNEL_SCHEDULING) {
        return Category::KernelScheduling;
    }
    if is_file_thread || has_prefix(symbol, KERNEL_DISK) {
        return Category::KernelDisk;
    }
    if has_prefix(symbol, KERNEL_NETWORK) { Category::KernelNetwork } else { Category::KernelOther }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_belong_to_their_crate_and_module() {
        let cases = [
            ("<hyper::proto::h1::role::Server as hyper::proto::h1::Http1Transaction>::encode", Category::Http),
            ("tokio::runtime::task::raw::poll", Category::Runtime),
            ("<&mut serde_json::de::Deserializer<R> as serde_core::de::Deserializer>::deserialize_str", Category::Json),
            ("driftq_server::http::message_fields::_::<impl serde_core::de::Deserialize for X>::f", Category::Json),
            ("driftq_server::http::service::Service::respond::{{closure}}", Category::Server),
            ("driftq_server::driver::io_threads::spawn::{{closure}}", Category::LogThreads),
            ("driftq_core::decide::produce::produce_after", Category::Core),
            ("driftq_core::log::footer::FooterBuilder::insert_waiting", Category::Codec),
            ("<T as driftq_core::wire::Encode>::encode", Category::Codec),
            ("crc32fast::specialized::pclmulqdq::calculate", Category::Codec),
            ("core::ptr::drop_in_place<driftq_server::http::produce::produce::{{closure}}>", Category::Server),
            ("alloc::sync::Arc<driftq_core[1a2b]::state::Message>::drop_slow", Category::Core),
            ("_int_malloc", Category::Allocation),
            ("__rust_dealloc", Category::Allocation),
            ("__memcpy_avx_unaligned_erms", Category::Copies),
        ];
        for (symbol, category) in cases {
            assert_eq!(Assigned::by_symbol(symbol), Assigned::To(category), "{symbol}");
        }
        for shared in ["alloc::vec::Vec<T,A>::reserve", "core::str::converts::from_utf8", "pthread_mutex_lock", "main"]
        {
            assert_eq!(Assigned::by_symbol(shared), Assigned::Caller, "{shared}");
        }
        for unknown in
            ["planted::Function::run", "<planted::A as core::clone::Clone>::clone", "0x00000000000123ab", "???"]
        {
            assert_eq!(Assigned::by_symbol(unknown), Assigned::Nothing, "{unknown}");
        }
    }

    #[test]
    fn files_belong_to_their_crate_and_module() {
        let registry = "/x/registry/src/index-1949cf8c6b5b557f";
        let cases = [
            (format!("{registry}/http-1.5.0/src/header/map.rs"), Assigned::To(Category::Http)),
            (format!("{registry}/serde_json-1.0.154/src/read.rs"), Assigned::To(Category::Json)),
            (format!("{registry}/hyper-util-0.1.21/src/common/rewind.rs"), Assigned::To(Category::Http)),
            (format!("{registry}/planted-0.1.0-rc.1/src/lib.rs"), Assigned::Nothing),
            ("/rustc/59807616/library/core/src/ptr/mod.rs".to_owned(), Assigned::Caller),
            ("/rustc/59807616/library/std/src/sys/alloc/unix.rs".to_owned(), Assigned::To(Category::Allocation)),
            ("/x/driftq/server/src/json.rs".to_owned(), Assigned::To(Category::Json)),
            ("server/src/http/produce.rs".to_owned(), Assigned::To(Category::Server)),
            ("/x/core/core/src/codec/mod.rs".to_owned(), Assigned::To(Category::Codec)),
            ("/x/core/src/decide/mod.rs".to_owned(), Assigned::To(Category::Core)),
            ("/x/files/src/storage.rs".to_owned(), Assigned::To(Category::LogThreads)),
            ("./malloc/./malloc/malloc.c".to_owned(), Assigned::To(Category::Allocation)),
            ("???".to_owned(), Assigned::Caller),
        ];
        for (path, assigned) in cases {
            assert_eq!(Assigned::by_file(&path), assigned, "{path}");
        }
    }

    #[test]
    fn kernel_is_divided_by_function_and_thread() {
        assert_eq!(of_kernel("tcp_sendmsg_locked", false), Category::KernelNetwork);
        assert_eq!(of_kernel("finish_task_switch.isra.0", true), Category::KernelScheduling);
        assert_eq!(of_kernel("_raw_spin_unlock_irqrestore", true), Category::KernelDisk);
        assert_eq!(of_kernel("_raw_spin_unlock_irqrestore", false), Category::KernelOther);
        assert_eq!(of_kernel("ext4_bio_write_folio", false), Category::KernelDisk);
    }

    #[test]
    fn categories_are_listed_in_their_order() {
        let positions: Vec<u16> = Category::ALL.iter().map(|category| category.position()).collect();
        assert_eq!(positions, (0..15).collect::<Vec<u16>>());
    }
}
