//! The table that `run --stats` prints when the program has ended.

use crate::report::Table;
use crate::size;
use uringlet::stats::{Distribution, Snapshot};

/// The whole summary, ready to print. `filters`: the number of processes whose io_uring calls a
/// seccomp(2) filter turns into signals. `refused`: a text about refused set-ups, if there are any.
pub fn text(stats: &Snapshot, filters: u64, refused: Option<String>) -> String {
    let mut table = Table::new("", ["", "", ""], 1..2);
    let mut row = |name: &str, value: String, more: String| {
        table.row([name.to_owned(), value, more]);
    };
    let count = |n: u64| size::grouped(n);
    let total = stats.requests();
    row("contexts", count(stats.contexts), String::new());
    row("requests", count(total), String::new());
    row("  reads", count(stats.reads), size::long(stats.bytes_read));
    row("  writes", count(stats.writes), size::long(stats.bytes_written));
    row("  fsyncs", count(stats.fsyncs), String::new());
    row("  polls", count(stats.polls), String::new());
    row("  others", count(stats.others), String::new());
    row("of these failed", count(stats.errors), share(stats.errors, total));
    row("canceled", count(stats.canceled), String::new());
    row("executed by", String::new(), String::new());
    row("  a waiter", count(stats.by_waiter), share(stats.by_waiter, total));
    row("  a worker with the baton", count(stats.by_worker), share(stats.by_worker, total));
    row("  a pool worker", count(stats.by_pool), share(stats.by_pool, total));
    row("  the poller", count(stats.by_poller), share(stats.by_poller, total));
    row("  the kernel", count(stats.by_kernel), share(stats.by_kernel, total));
    let lost = stats.after_losing_baton;
    row("of these after losing the baton", count(lost), share(lost, total));
    row("wake-ups", count(stats.wakeups), per_request(stats.wakeups, total));
    row("hand-overs", count(stats.handovers), per_request(stats.handovers, total));
    row("calls of a worker beside a waiter", count(stats.calls_beside), String::new());
    row("  its CPU was busy", count(stats.beside_busy), String::new());
    row("  it brought too little", count(stats.beside_idle), String::new());
    row("reads of pages not in memory", count(stats.reads_ahead), share(stats.reads_ahead, total));
    row("fsyncs done with others", count(stats.syncs_together), String::new());
    row("workers at most", count(stats.workers_max), String::new());
    row("processes with a filter of calls", count(filters), String::new());
    for (name, number) in [
        ("executed in the submitter's cell", stats.submissions_local),
        ("  in another", stats.submissions_remote),
        ("completed in the interrupt's cell", stats.completions_local),
        ("  in another", stats.completions_remote),
        ("completed in the submitter's cell", stats.completions_home),
        ("  in another", stats.completions_away),
        ("hand-overs between CPUs", stats.cpu_handovers),
    ] {
        if [stats.submissions_local, stats.submissions_remote] != [0, 0] {
            row(name, count(number), share(number, total));
        }
    }
    let heads = ["latency", "p50", "p99", "p99.9", "max", "samples"];
    let mut latency = Table::new("", heads, 1..6);
    for (name, of) in [("submit", &stats.submit), ("completion", &stats.completion)] {
        latency.row(latency_row(name, of));
    }
    let refused = refused.map_or_else(String::new, |refused| format!("uringlet: {refused}\n"));
    format!("uringlet: summary\n{}\n{}{refused}", table.text(), latency.text())
}

fn latency_row(name: &str, of: &Distribution) -> [String; 6] {
    let of = of.latency();
    let time = |ns| if of.count == 0 { "-".into() } else { size::nanoseconds(ns) };
    let [p50, p99, p999, max] = [of.p50_ns, of.p99_ns, of.p999_ns, of.max_ns].map(time);
    [name.into(), p50, p99, p999, max, size::grouped(of.count)]
}

fn share(part: u64, total: u64) -> String {
    if part == 0 || total == 0 {
        return String::new();
    }
    let percent = part as f64 * 100.0 / total as f64;
    if percent < 0.1 { "<0.1 %".into() } else { format!("{percent:.1} %") }
}

fn per_request(events: u64, total: u64) -> String {
    if events == 0 || total == 0 {
        return String::new();
    }
    format!("one in {} requests", size::digits(total as f64 / events as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_line_and_the_columns_align() {
        let mut stats = Snapshot::default();
        stats.contexts = 2;
        stats.reads = 1_000_000;
        stats.writes = 234_567;
        stats.bytes_read = 4096 * 1_000_000;
        stats.by_waiter = 1_234_000;
        stats.by_worker = 567;
        stats.wakeups = 10;
        stats.workers_max = 3;
        [512, 2_000_000_000].into_iter().for_each(|ns| stats.completion.record(ns));
        let text = text(&stats, 1, Some("2 set-ups were refused".into()));
        for part in ["1,234,567", "3.81 GiB", "100.0 %", "<0.1 %", "543 ns", "2.00 s"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let ends = |name: &str, value: &str| {
            let line = text.lines().find(|l| l.trim_start().starts_with(name)).expect(name);
            line.find(value).expect(value) + value.len()
        };
        assert_eq!(ends("contexts", "2"), ends("reads", "1,000,000"));
        assert_eq!(ends("contexts", "2"), ends("a waiter", "1,234,000"));
        assert_eq!(ends("contexts", "2"), ends("processes with a filter of calls", "1"));
        assert!(text.lines().all(|l| l == l.trim_end() && l.chars().count() <= 100));
    }
}
