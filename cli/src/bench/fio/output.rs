//! fio's output of a run.

use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::process::Output;

/// The figures of one job in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figure {
    pub requests: u64,
    /// Requests per second.
    pub iops: f64,
    pub bytes_per_second: f64,
    /// User and system time, as fio counts it.
    pub cpu_us_per_request: f64,
    /// The mean latency from the submit on.
    pub mean_us: f64,
    pub p99_us: Option<f64>,
    /// Requests that failed, if the job goes on after errors.
    pub errors: u64,
}

/// A job, its clones included.
#[derive(Debug)]
pub struct Job {
    pub name: String,
    pub group: u64,
    pub figure: Figure,
    /// The reason why the figure does not count, if the job has failed or made no request.
    pub failure: Option<String>,
    /// The job's own options, and the options that all jobs share.
    pub options: Map<String, Value>,
    /// The job's entries in the list `jobs` of fio's output, without the bins of the latencies.
    pub entries: Vec<Value>,
}

/// What fio's output says about a whole run.
pub struct Found {
    pub version: String,
    pub jobs: Vec<Job>,
}

/// Parses fio's output.
///
/// # Errors
/// fio has not run the jobs. The error is the complaint that fio has printed.
pub fn read(output: &Output) -> Result<Found, String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // fio may print notes about the job before the JSON.
    let start = if text.starts_with('{') { Some(0) } else { text.find("\n{") };
    let (notes, json) = text.split_at(start.unwrap_or(text.len()));
    let reason = reason(&errors, notes);
    let whole: Value = serde_json::from_str(json).unwrap_or_default();
    let entries = whole["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if entries.is_empty() {
        return Err(reason.unwrap_or_else(|| format!("fio has run no job ({})", output.status)));
    }
    let mut groups: Vec<(String, u64, Vec<&Value>)> = Vec::new();
    for entry in entries {
        let name = entry["jobname"].as_str().unwrap_or_default();
        let group = entry["groupid"].as_u64().unwrap_or_default();
        match groups.iter_mut().find(|(known, number, _)| known == name && *number == group) {
            Some((_, _, clones)) => clones.push(entry),
            None => groups.push((name.to_owned(), group, vec![entry])),
        }
    }
    let jobs = groups.into_iter().map(|(name, group, clones)| {
        let figure = Figure::of(&clones);
        let error = clones.iter().find_map(|entry| entry["error"].as_i64().filter(|e| *e != 0));
        let failure = error.map(|error| {
            let error = std::io::Error::from_raw_os_error(error as i32);
            reason.clone().unwrap_or_else(|| error.to_string())
        });
        let nothing = (figure.requests == 0).then(|| "the job made no request".to_owned());
        let mut options = object(&whole["global options"]);
        options.extend(object(&clones[0]["job options"]));
        let entries = clones.into_iter().map(without_bins).collect();
        Job { name, group, figure, failure: failure.or(nothing), options, entries }
    });
    let version = whole["fio version"].as_str().unwrap_or_default().to_owned();
    Ok(Found { version, jobs: jobs.collect() })
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// fio's complaint, without the parts that vary.
fn reason(errors: &str, notes: &str) -> Option<String> {
    // `fio: pid=7, err=22/file:io_u.c:1846, func=io_u error, error=Invalid argument`
    let called = |line: &str| {
        let (what, error) = line.split_once("func=")?.1.split_once(", error=")?;
        Some(format!("fio: {what}: {error}"))
    };
    let first = || errors.lines().find(|line| !line.is_empty() && !line.starts_with("note:"));
    let whole = || first().map(|line| format!("fio: {}", line.trim_start_matches("fio: ")));
    notes.lines().chain(errors.lines()).find_map(called).or_else(whole)
}

impl Figure {
    /// The figures of a job and its clones, with reads, writes and trims added together.
    fn of(clones: &[&Value]) -> Self {
        let mut figure = Self::default();
        let (mut cpu_us, mut latency_us) = (0.0, 0.0);
        let mut samples = 0.0;
        let mut bins: BTreeMap<u64, u64> = BTreeMap::new();
        for entry in clones {
            let number = |name: &str| entry[name].as_f64().unwrap_or_default();
            // The CPU use is in percent, and the runtime in milliseconds.
            cpu_us += (number("usr_cpu") + number("sys_cpu")) * number("job_runtime") * 10.0;
            figure.errors += entry["total_err"].as_u64().unwrap_or_default();
            for side in ["read", "write", "trim"].map(|side| &entry[side]) {
                let number = |value: &Value| value.as_f64().unwrap_or_default();
                figure.requests += side["total_ios"].as_u64().unwrap_or_default();
                figure.iops += number(&side["iops"]);
                figure.bytes_per_second += number(&side["bw_bytes"]);
                let latency = &side["lat_ns"];
                let count = number(&latency["N"]);
                samples += count;
                latency_us += number(&latency["mean"]) / 1e3 * count;
                let counts = latency["bins"].as_object().or(side["clat_ns"]["bins"].as_object());
                for (ns, count) in counts.into_iter().flatten() {
                    let ns = ns.parse().unwrap_or_default();
                    *bins.entry(ns).or_default() += count.as_u64().unwrap_or_default();
                }
            }
        }
        figure.cpu_us_per_request = cpu_us / figure.requests.max(1) as f64;
        figure.mean_us = latency_us / f64::max(samples, 1.0);
        figure.p99_us = percentile(&bins, 0.99).map(|ns| ns as f64 / 1e3);
        figure
    }
}

/// The lowest value with at least the share `part` of all counted values at or below it.
fn percentile(bins: &BTreeMap<u64, u64>, part: f64) -> Option<u64> {
    let all: u64 = bins.values().sum();
    let wanted = (all as f64 * part).ceil() as u64;
    let mut seen = 0;
    let reached = |(_, count): &(&u64, &u64)| {
        seen += *count;
        seen >= wanted
    };
    bins.iter().find(reached).map(|(value, _)| *value)
}

fn without_bins(entry: &Value) -> Value {
    let mut entry = entry.clone();
    let sides = entry.as_object_mut().into_iter().flat_map(|fields| fields.values_mut());
    for side in sides.filter_map(Value::as_object_mut) {
        for latency in side.values_mut().filter_map(Value::as_object_mut) {
            latency.remove("bins");
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    fn said(stdout: &str, stderr: &str) -> Result<Found, String> {
        let status = ExitStatus::from_raw(1 << 8);
        read(&Output { status, stdout: stdout.into(), stderr: stderr.into() })
    }

    #[test]
    fn clones_and_sides_are_put_together() {
        let side = |ios: u64, us: f64, ns: u64| {
            let bins = json!({ (ns.to_string()): ios });
            let latency = json!({ "mean": us * 1e3, "N": ios, "bins": bins });
            json!({ "total_ios": ios, "iops": ios * 2, "bw_bytes": ios * 8192, "lat_ns": latency })
        };
        let entry = |read: Value, write: Value| {
            json!({
                "jobname": "a", "groupid": 3, "error": 0, "job options": { "rw": "randrw" },
                "usr_cpu": 10.0, "sys_cpu": 30.0, "job_runtime": 500, "read": read, "write": write,
            })
        };
        let clones =
            [entry(side(98, 10.0, 10_000), json!({})), entry(json!({}), side(2, 60.0, 60_000))];
        let whole =
            json!({ "fio version": "fio-3", "global options": { "bs": "4k" }, "jobs": clones });
        let found = said(&format!("note: queue depth\n{whole:#}"), "").unwrap();
        let [job] = &found.jobs[..] else { panic!("{:?}", found.jobs) };
        let expected = Figure {
            requests: 100,
            iops: 200.0,
            bytes_per_second: 819_200.0,
            cpu_us_per_request: 4000.0,
            mean_us: 11.0,
            p99_us: Some(60.0),
            errors: 0,
        };
        assert_eq!((&job.figure, &job.failure), (&expected, &None));
        assert_eq!((&job.options["bs"], &job.options["rw"]), (&"4k".into(), &"randrw".into()));
        assert!(!job.entries[0].to_string().contains("bins"), "{:?}", job.entries);
    }

    #[test]
    fn a_failure_is_in_fios_words() {
        let loading = "fio: engine nosuch not loadable\nfio: failed to load engine\n";
        assert_eq!(said("", loading).err().unwrap(), "fio: engine nosuch not loadable");
        let option = "Bad option <nosuch=1>\nfio: job a dropped\n";
        assert_eq!(said("", option).err().unwrap(), "fio: Bad option <nosuch=1>");
        let jobs = json!({ "jobs": [{ "jobname": "a", "groupid": 0, "error": 22 }] });
        let line = "fio: pid=7, err=22/file:io_u.c:1846, func=io_u error, error=Invalid argument\n";
        let found = said(&format!("{line}{jobs:#}"), "").unwrap();
        assert_eq!(found.jobs[0].failure.as_deref(), Some("fio: io_u error: Invalid argument"));
        assert!(said("", "").err().unwrap().contains("exit status: 1"));
    }
}
