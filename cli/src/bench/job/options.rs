//! What the options of a job mean.

use super::ini::{At, Entry, Section};
use super::value::{Amount, amount, number, size, switch, time};
use crate::bench::{DEEPEST, LARGEST_BLOCK};
use std::path::PathBuf;
use std::time::Duration;

/// Jobs of one section.
const MOST_JOBS: u64 = 4096;

/// The order of a job's requests, and what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub random: bool,
    pub reads: bool,
    pub writes: bool,
}

/// A section, understood. Names are those of fio's options.
#[derive(Clone, Debug)]
pub struct Spec {
    pub at: At,
    pub name: String,
    /// As they stand in the file, for the report.
    pub own: Vec<Entry>,
    pub rw: Pattern,
    pub rwmixread: u64,
    pub bs: u64,
    pub size: Option<Amount>,
    pub filesize: Option<u64>,
    pub io_size: Option<u64>,
    pub offset: Amount,
    pub offset_increment: u64,
    pub number_ios: Option<u64>,
    pub loops: u64,
    pub iodepth: usize,
    pub iodepth_batch: usize,
    pub iodepth_batch_complete_min: usize,
    pub iodepth_low: Option<usize>,
    pub numjobs: u64,
    pub thread: bool,
    pub group_reporting: bool,
    pub stonewall: bool,
    pub new_group: bool,
    pub direct: bool,
    pub runtime: Option<Duration>,
    pub time_based: bool,
    pub ramp_time: Option<Duration>,
    /// With the line that names it.
    pub filename: Option<(String, At)>,
    pub filename_format: String,
    pub directory: Option<PathBuf>,
    pub nrfiles: u64,
    pub fsync: u32,
    pub fdatasync: u32,
    pub end_fsync: bool,
    pub invalidate: bool,
    pub fadvise_hint: bool,
    pub overwrite: bool,
    pub unlink: bool,
    pub norandommap: bool,
    pub randrepeat: bool,
    pub randseed: u64,
    pub ioengine: Option<String>,
}

/// Those of fio's engines that mean plain reads and writes of files: any engine can run their jobs.
const FILE_ENGINES: [&str; 8] =
    ["sync", "psync", "vsync", "pvsync", "pvsync2", "libaio", "io_uring", "posixaio"];

/// They change how fio makes or reports something, and not what the requests are.
const WITHOUT_EFFECT: [&str; 13] = [
    "allrandrepeat",
    "clat_percentiles",
    "clocksource",
    "create_fsync",
    "create_on_open",
    "create_serialize",
    "disk_util",
    "fallocate",
    "gtod_reduce",
    "lat_percentiles",
    "percentile_list",
    "refill_buffers",
    "scramble_buffers",
];

/// What is wrong with an option.
enum Refusal {
    /// There is none of this name, or none that is understood here.
    Unknown,
    /// What was expected.
    Expected(String),
}

impl From<String> for Refusal {
    fn from(expected: String) -> Self {
        Self::Expected(expected)
    }
}

impl Spec {
    fn new(section: &Section) -> Self {
        Self {
            at: section.at.clone(),
            name: section.name.clone(),
            own: Vec::new(),
            rw: Pattern { random: false, reads: true, writes: false },
            rwmixread: 50,
            bs: 4096,
            size: None,
            filesize: None,
            io_size: None,
            offset: Amount::Bytes(0),
            offset_increment: 0,
            number_ios: None,
            loops: 1,
            iodepth: 1,
            iodepth_batch: 1,
            iodepth_batch_complete_min: 1,
            iodepth_low: None,
            numjobs: 1,
            thread: false,
            group_reporting: false,
            stonewall: false,
            new_group: false,
            direct: false,
            runtime: None,
            time_based: false,
            ramp_time: None,
            filename: None,
            filename_format: "$jobname.$jobnum.$filenum".into(),
            directory: None,
            nrfiles: 1,
            fsync: 0,
            fdatasync: 0,
            end_fsync: false,
            invalidate: true,
            fadvise_hint: true,
            overwrite: false,
            unlink: false,
            norandommap: false,
            randrepeat: true,
            randseed: 0,
            ioengine: None,
        }
    }

    /// Reads a section. What is unknown becomes a notice if `lenient`, and an error otherwise.
    ///
    /// # Errors
    /// Every option that is refused, in words: file, line, name, value, what was expected.
    pub fn read(
        section: &Section,
        lenient: bool,
        notices: &mut Vec<String>,
    ) -> Result<Self, Vec<String>> {
        let mut spec = Self::new(section);
        let mut errors = Vec::new();
        for entry in &section.entries {
            let Entry { at, name, value, .. } = entry;
            match spec.set(entry) {
                Ok(()) => {}
                Err(Refusal::Unknown) if WITHOUT_EFFECT.contains(&&**name) => {
                    notices.push(format!("{at}: {name} has no effect here"));
                }
                Err(Refusal::Expected(expected)) => {
                    let value = value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
                    errors.push(format!("{at}: {name}{value}: {expected}"));
                }
                Err(Refusal::Unknown) if lenient => {
                    notices.push(format!("{at}: {name} is not understood here, and left out"));
                }
                Err(Refusal::Unknown) => errors.push(format!(
                    "{at}: {name}: expected an option that is understood here (--lenient leaves it out)"
                )),
            }
        }
        if spec.time_based && spec.runtime.is_none() {
            notices.push(format!(
                "{}: [{}] has time_based without a runtime, which means nothing (as in fio)",
                spec.at, spec.name
            ));
            spec.time_based = false;
        }
        if let Some(low) = spec.iodepth_low.filter(|low| *low > spec.iodepth) {
            errors.push(format!(
                "{}: [{}]: iodepth_low={low}: expected at most {}, the iodepth",
                spec.at, spec.name, spec.iodepth
            ));
        }
        spec.own = section.entries.clone();
        if errors.is_empty() { Ok(spec) } else { Err(errors) }
    }

    fn set(&mut self, entry: &Entry) -> Result<(), Refusal> {
        let bare = entry.value.as_deref();
        let text = || {
            let value = bare.filter(|value| !value.is_empty());
            value.ok_or_else(|| Refusal::Expected("expected a value".into()))
        };
        let count = |least, most| Ok::<_, Refusal>(number(text()?, least, most)?);
        let depth = |least| Ok::<_, Refusal>(count(least, DEEPEST as u64)? as usize);
        let on = || Ok::<_, Refusal>(switch(bare)?);
        match entry.name.as_str() {
            "name" => self.name = text()?.to_owned(),
            "description" => {}
            "kb_base" => match text()? {
                "1024" => {}
                _ => return Err(Refusal::Expected("expected 1024".into())),
            },
            "rw" | "readwrite" => self.rw = pattern(text()?)?,
            "rwmixread" => self.rwmixread = count(0, 100)?,
            "rwmixwrite" => self.rwmixread = 100 - count(0, 100)?,
            "bs" | "blocksize" => self.bs = block(text()?)?,
            "size" => self.size = Some(positive(amount(text()?)?)?),
            "filesize" => self.filesize = Some(positive_size(text()?)?),
            "io_size" | "io_limit" => {
                self.io_size = Some(size(text()?)?).filter(|bytes| *bytes > 0);
            }
            "offset" => self.offset = amount(text()?)?,
            "offset_increment" => self.offset_increment = size(text()?)?,
            "number_ios" => self.number_ios = Some(count(0, u64::MAX)?).filter(|ios| *ios > 0),
            "loops" => self.loops = count(1, u64::MAX)?,
            "iodepth" => self.iodepth = depth(1)?,
            "iodepth_batch" | "iodepth_batch_submit" => self.iodepth_batch = depth(1)?,
            "iodepth_batch_complete" | "iodepth_batch_complete_min" => {
                self.iodepth_batch_complete_min = depth(1)?;
            }
            "iodepth_low" => self.iodepth_low = Some(depth(1)?),
            "numjobs" => self.numjobs = count(1, MOST_JOBS)?,
            "thread" => self.thread = on()?,
            "group_reporting" => self.group_reporting = on()?,
            "stonewall" | "wait_for_previous" => self.stonewall = on()?,
            "new_group" => self.new_group = on()?,
            "direct" => self.direct = on()?,
            "buffered" => self.direct = !on()?,
            "runtime" | "timeout" => {
                self.runtime = Some(time(text()?)?).filter(|time| !time.is_zero());
            }
            "time_based" => self.time_based = on()?,
            "ramp_time" => self.ramp_time = Some(time(text()?)?).filter(|time| !time.is_zero()),
            "filename" => self.filename = Some((text()?.to_owned(), entry.at.clone())),
            "filename_format" => self.filename_format = text()?.to_owned(),
            "directory" => self.directory = Some(PathBuf::from(text()?)),
            "nrfiles" | "nr_files" => self.nrfiles = count(1, 1024)?,
            "fsync" => self.fsync = count(0, u64::from(u32::MAX))? as u32,
            "fdatasync" => self.fdatasync = count(0, u64::from(u32::MAX))? as u32,
            "end_fsync" => self.end_fsync = on()?,
            "invalidate" => self.invalidate = on()?,
            "fadvise_hint" => self.fadvise_hint = on()?,
            "overwrite" => self.overwrite = on()?,
            "unlink" => self.unlink = on()?,
            "norandommap" => self.norandommap = on()?,
            "randrepeat" => self.randrepeat = on()?,
            "randseed" => self.randseed = count(0, u64::MAX)?,
            "ioengine" => self.ioengine = Some(file_engine(text()?)?),
            _ => return Err(Refusal::Unknown),
        }
        Ok(())
    }
}

fn pattern(text: &str) -> Result<Pattern, String> {
    let of = |random, reads, writes| Ok(Pattern { random, reads, writes });
    match text {
        "read" => of(false, true, false),
        "write" => of(false, false, true),
        "rw" | "readwrite" => of(false, true, true),
        "randread" => of(true, true, false),
        "randwrite" => of(true, false, true),
        "randrw" => of(true, true, true),
        _ => Err("expected read, write, rw, randread, randwrite or randrw".into()),
    }
}

/// One size; or one each for reads and writes, if they are the same.
fn block(text: &str) -> Result<u64, String> {
    let mut sizes = text.split(',').map(size);
    let first = sizes.next().unwrap_or_else(|| size(""))?;
    for other in sizes {
        if other? != first {
            return Err("expected the same size for reads and writes".into());
        }
    }
    match first {
        1..=LARGEST_BLOCK => Ok(first),
        _ => Err("expected a size from 1 to 16m".into()),
    }
}

fn positive(amount: Amount) -> Result<Amount, String> {
    if amount == Amount::Bytes(0) { Err("expected more than nothing".into()) } else { Ok(amount) }
}

fn positive_size(text: &str) -> Result<u64, String> {
    size(text).and_then(|bytes| {
        if bytes == 0 { Err("expected more than nothing".into()) } else { Ok(bytes) }
    })
}

fn file_engine(text: &str) -> Result<String, String> {
    if FILE_ENGINES.contains(&text) {
        return Ok(text.into());
    }
    Err(format!("expected an engine that reads and writes files ({})", FILE_ENGINES.join(", ")))
}
