//! The rows: each way to await a read, in a process of its own.

use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use uringlet::fs::BufResult;

use crate::block::Block;
use crate::plan::{BLOCK, Column, Plan, device_bytes};

/// A way to await a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// uringlet on tokio, which drives it
    UringletDriven,
    /// uringlet on tokio, driven by threads of its own
    UringletTokio,
    /// uringlet on smol's executor
    UringletSmol,
    /// uringlet without an executor, `.wait()`; from 2 in flight on, all are submitted first
    UringletWait,
    /// tokio::fs: seek, and read_exact
    TokioFs,
    /// pread in tokio's spawn_blocking
    SpawnBlocking,
    /// compio
    Compio,
    /// monoio
    Monoio,
    /// glommio
    Glommio,
    /// tokio-uring
    TokioUring,
    /// plain pread, a thread for each in flight: the floor
    Pread,
    /// fio's io_uring engine: the ceiling
    Fio,
}

impl Row {
    pub const ALL: &[Self] = Self::VARIANTS;
    const VARIANTS: &[Self] = &[
        Self::UringletDriven,
        Self::UringletTokio,
        Self::UringletSmol,
        Self::UringletWait,
        Self::TokioFs,
        Self::SpawnBlocking,
        Self::Compio,
        Self::Monoio,
        Self::Glommio,
        Self::TokioUring,
        Self::Pread,
        Self::Fio,
    ];
}

/// The measurements of one run of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub reads_per_second: f64,
    /// CPU time of the whole process, user and system, in microseconds.
    pub cpu_us_per_read: f64,
    pub p99_us: f64,
    /// The maximum delay of a task that sleeps for a millisecond, in the same executor; none
    /// without an executor.
    pub stall_us: Option<f64>,
    /// Bytes from devices divided by bytes read.
    pub device_share: f64,
}

/// Latencies in nanoseconds, and the maximum delay of the timer.
type Tasks = (Vec<u64>, Option<Duration>);

fn cpu_time() -> Duration {
    // SAFETY: zeroes are a valid `rusage`, and the call fills it in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let of = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Start and end of the measurement: the same for each row except fio.
struct Watch {
    begin: Instant,
    cpu: Duration,
    device: u64,
}

impl Watch {
    fn start() -> Result<Self> {
        Ok(Self { device: device_bytes()?, cpu: cpu_time(), begin: Instant::now() })
    }

    fn stop(self, plan: &Plan, (mut latencies, stall): Tasks) -> Result<Measured> {
        let (time, cpu) = (self.begin.elapsed(), cpu_time() - self.cpu);
        let device = device_bytes()? - self.device;
        plan.check(device)?;
        let reads = plan.reads();
        ensure!(latencies.len() == reads, "{} of {reads} reads", latencies.len());
        latencies.sort_unstable();
        Ok(Measured {
            reads_per_second: reads as f64 / time.as_secs_f64(),
            cpu_us_per_read: cpu.as_secs_f64() * 1e6 / reads as f64,
            p99_us: latencies[(reads * 99 / 100).min(reads - 1)] as f64 / 1e3,
            stall_us: stall.map(|stall| stall.as_secs_f64() * 1e6),
            device_share: device as f64 / (reads * BLOCK) as f64,
        })
    }
}

const TICK: Duration = Duration::from_millis(1);

/// Runs the plan's tasks and the timer on an executor. The other arguments say how to spawn a task,
/// sleep, take a task's result, open the file and read a block.
macro_rules! tasks {
    ($plan:expr, $spawn:expr, $sleep:expr, $joined:expr, $open:expr, $read:expr) => {{
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stops);
        let timer = $spawn(async move {
            let mut worst = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let begin = Instant::now();
                $sleep(TICK).await;
                worst = worst.max(begin.elapsed().saturating_sub(TICK));
            }
            worst
        });
        let mut tasks = Vec::new();
        for offsets in &$plan.tasks {
            let offsets = Arc::clone(offsets);
            let file = $open?;
            tasks.push($spawn(async move {
                let mut file = file;
                let mut latencies = Vec::with_capacity(offsets.len());
                let mut block = Block::new();
                for &offset in offsets.iter() {
                    let begin = Instant::now();
                    (file, block) = $read(file, block, offset).await?;
                    latencies.push(begin.elapsed().as_nanos() as u64);
                }
                anyhow::Ok(latencies)
            }));
        }
        let mut latencies = Vec::with_capacity($plan.reads());
        for task in tasks {
            latencies.extend($joined(task.await)?);
        }
        stops.store(true, Ordering::Relaxed);
        let worst = $joined(timer.await);
        anyhow::Ok((latencies, Some(worst)))
    }};
}

fn whole(count: usize) -> Result<()> {
    ensure!(count == BLOCK, "a read of {count} bytes");
    Ok(())
}

fn tokio_runtime(workers: usize) -> Result<tokio::runtime::Runtime> {
    Ok(match workers {
        0 => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        _ => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(workers).enable_all().build()?
        }
    })
}

async fn read_ours(
    file: uringlet::fs::File,
    block: Block,
    offset: u64,
) -> Result<(uringlet::fs::File, Block)> {
    let BufResult(result, block) = file.read_at(block, offset).await;
    whole(result?)?;
    Ok((file, block))
}

/// Runs a row in this process. `workers` is the number of threads of tokio's runtime. With 0,
/// the runtime runs on the calling thread.
pub fn measure(row: Row, plan: &Plan, workers: usize) -> Result<Measured> {
    match row {
        Row::UringletDriven | Row::UringletTokio => {
            let runtime = tokio_runtime(workers)?;
            let ours = uringlet::fs::File::from_std(plan.open()?);
            let watch = Watch::start()?;
            let tasks = runtime.block_on(async {
                if row == Row::UringletDriven {
                    uringlet::fs::drive_on_tokio();
                }
                tasks!(
                    plan,
                    tokio::spawn,
                    tokio::time::sleep,
                    |joined: std::result::Result<_, _>| joined.expect("no task panics"),
                    anyhow::Ok(ours.clone()),
                    read_ours
                )
            })?;
            watch.stop(plan, tasks)
        }
        Row::UringletSmol => {
            let executor = async_executor::Executor::new();
            let ours = uringlet::fs::File::from_std(plan.open()?);
            let watch = Watch::start()?;
            let tasks = async_io::block_on(executor.run(async {
                tasks!(
                    plan,
                    |task| executor.spawn(task),
                    async_io::Timer::after,
                    |joined| joined,
                    anyhow::Ok(ours.clone()),
                    read_ours
                )
            }))?;
            watch.stop(plan, tasks)
        }
        Row::UringletWait => {
            let file = uringlet::fs::File::from_std(plan.open()?);
            let watch = Watch::start()?;
            let mut latencies = Vec::with_capacity(plan.reads());
            let mut blocks: Vec<_> = (0..plan.depth).map(|_| Block::new()).collect();
            for round in 0..plan.tasks[0].len() {
                let offsets = plan.tasks.iter().filter_map(|task| task.get(round));
                let reads: Vec<_> = offsets
                    .map(|&offset| {
                        let block = blocks.pop().expect("one for each");
                        let (begin, read) = (Instant::now(), file.read_at(block, offset));
                        (begin, if plan.depth > 1 { read.submit() } else { read })
                    })
                    .collect();
                for (begin, read) in reads {
                    let BufResult(result, block) = read.wait();
                    whole(result?)?;
                    latencies.push(begin.elapsed().as_nanos() as u64);
                    blocks.push(block);
                }
            }
            watch.stop(plan, (latencies, None))
        }
        Row::TokioFs => {
            use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
            if plan.column == Column::Direct {
                bail!("its own buffer is not aligned for direct I/O");
            }
            let runtime = tokio_runtime(workers)?;
            let read = async |mut file: tokio::fs::File, mut block: Block, offset| {
                file.seek(std::io::SeekFrom::Start(offset)).await?;
                file.read_exact(block.bytes()).await?;
                anyhow::Ok((file, block))
            };
            let watch = Watch::start()?;
            let tasks = runtime.block_on(async {
                tasks!(
                    plan,
                    tokio::spawn,
                    tokio::time::sleep,
                    |joined: std::result::Result<_, _>| joined.expect("no task panics"),
                    plan.open().map(tokio::fs::File::from_std),
                    read
                )
            })?;
            watch.stop(plan, tasks)
        }
        Row::SpawnBlocking => {
            use std::os::unix::fs::FileExt as _;
            let runtime = tokio_runtime(workers)?;
            let std = Arc::new(plan.open()?);
            let read = async |file: Arc<std::fs::File>, mut block: Block, offset| {
                tokio::task::spawn_blocking(move || {
                    whole(file.read_at(block.bytes(), offset)?)?;
                    anyhow::Ok((file, block))
                })
                .await?
            };
            let watch = Watch::start()?;
            let tasks = runtime.block_on(async {
                tasks!(
                    plan,
                    tokio::spawn,
                    tokio::time::sleep,
                    |joined: std::result::Result<_, _>| joined.expect("no task panics"),
                    anyhow::Ok(Arc::clone(&std)),
                    read
                )
            })?;
            watch.stop(plan, tasks)
        }
        Row::Compio => {
            use compio::io::AsyncReadAt as _;
            let runtime = compio::runtime::Runtime::new()?;
            let read = async |file: compio::fs::File, block: Block, offset| {
                let compio::BufResult(result, block) = file.read_at(block, offset).await;
                whole(result?)?;
                anyhow::Ok((file, block))
            };
            let watch = Watch::start()?;
            let tasks = runtime.block_on(async {
                tasks!(
                    plan,
                    compio::runtime::spawn,
                    compio::time::sleep,
                    |joined: std::result::Result<_, _>| joined.ok().expect("no task panics"),
                    // SAFETY: nothing else owns the descriptor: `into_raw_fd` gives it up.
                    plan.open()
                        .map(|file| unsafe { compio::fs::File::from_raw_fd(file.into_raw_fd()) }),
                    read
                )
            })?;
            watch.stop(plan, tasks)
        }
        Row::Monoio => {
            let builder = monoio::RuntimeBuilder::<monoio::FusionDriver>::new();
            let mut runtime = builder.enable_timer().build()?;
            let read = async |file: monoio::fs::File, block: Block, offset| {
                let (result, block) = file.read_at(block, offset).await;
                whole(result?)?;
                anyhow::Ok((file, block))
            };
            let watch = Watch::start()?;
            let tasks = runtime.block_on(async {
                tasks!(
                    plan,
                    monoio::spawn,
                    monoio::time::sleep,
                    |joined| joined,
                    plan.open().and_then(monoio::fs::File::from_std),
                    read
                )
            })?;
            watch.stop(plan, tasks)
        }
        Row::Glommio => {
            let executor = glommio::LocalExecutorBuilder::default().make();
            let executor = executor.map_err(|error| anyhow::anyhow!("{error}"))?;
            executor.run(async {
                let watch = Watch::start()?;
                let tasks = glommio_tasks(plan).await?;
                watch.stop(plan, tasks)
            })
        }
        Row::TokioUring => {
            let read = async |file: std::rc::Rc<tokio_uring::fs::File>, block: Block, offset| {
                let (result, block) = file.read_at(block, offset).await;
                whole(result?)?;
                anyhow::Ok((file, block))
            };
            tokio_uring::start(async {
                let file = std::rc::Rc::new(tokio_uring::fs::File::from_std(plan.open()?));
                let watch = Watch::start()?;
                let tasks = tasks!(
                    plan,
                    tokio_uring::spawn,
                    tokio::time::sleep,
                    |joined: std::result::Result<_, _>| joined.expect("no task panics"),
                    anyhow::Ok(std::rc::Rc::clone(&file)),
                    read
                )?;
                watch.stop(plan, tasks)
            })
        }
        Row::Pread => {
            use std::os::unix::fs::FileExt as _;
            let file = plan.open()?;
            let watch = Watch::start()?;
            let read = |offsets: &[u64]| -> Result<Vec<u64>> {
                let mut block = Block::new();
                let mut latencies = Vec::with_capacity(offsets.len());
                for &offset in offsets {
                    let begin = Instant::now();
                    whole(file.read_at(block.bytes(), offset)?)?;
                    latencies.push(begin.elapsed().as_nanos() as u64);
                }
                Ok(latencies)
            };
            let latencies = match &plan.tasks[..] {
                [alone] => read(alone)?,
                tasks => std::thread::scope(|scope| {
                    let threads: Vec<_> =
                        tasks.iter().map(|task| scope.spawn(|| read(task))).collect();
                    let joined = threads.into_iter().map(|thread| thread.join().expect("no panic"));
                    joined.collect::<Result<Vec<_>>>().map(|all| all.concat())
                })?,
            };
            watch.stop(plan, (latencies, None))
        }
        Row::Fio => fio(plan),
    }
}

/// glommio has two types of files: one for direct reads and one for buffered reads.
async fn glommio_tasks(plan: &Plan) -> Result<Tasks> {
    use glommio::io::{BufferedFile, DmaFile};
    fn failed(error: glommio::GlommioError<()>) -> anyhow::Error {
        anyhow::anyhow!("{error}")
    }
    if plan.column == Column::Direct {
        let mut files = Vec::new();
        for _ in 0..plan.depth {
            files.push(DmaFile::open(&plan.path).await.map_err(failed)?);
        }
        let read = async |file: DmaFile, block: Block, offset| {
            let read = file.read_at_aligned(offset, BLOCK).await.map_err(failed)?;
            whole(read.len())?;
            anyhow::Ok((file, block))
        };
        let mut files = files.into_iter();
        return tasks!(
            plan,
            glommio::spawn_local,
            glommio::timer::sleep,
            |joined| joined,
            files.next().context("one for each"),
            read
        );
    }
    let read = async |file: BufferedFile, block: Block, offset| {
        let read = file.read_at(offset, BLOCK).await.map_err(failed)?;
        whole(read.len())?;
        anyhow::Ok((file, block))
    };
    tasks!(
        plan,
        glommio::spawn_local,
        glommio::timer::sleep,
        |joined| joined,
        // SAFETY: nothing else owns the descriptor: `into_raw_fd` gives it up.
        plan.open().map(|file| unsafe { BufferedFile::from_raw_fd(file.into_raw_fd()) }),
        read
    )
}

/// fio chooses its own blocks, in a process of its own.
fn fio(plan: &Plan) -> Result<Measured> {
    if plan.column == Column::Mixed {
        bail!("fio does not mix hits and misses as the plan does");
    }
    let is = |column| u32::from(plan.column == column);
    let mut fio = std::process::Command::new("fio");
    fio.args(["--name=await", "--ioengine=io_uring", "--rw=randread", "--bs=4k", "--readonly"])
        .args(["--output-format=json", "--fadvise_hint=random", "--lat_percentiles=1"])
        .arg(format!("--filename={}", plan.path.display()))
        .arg(format!("--iodepth={}", plan.depth))
        .arg(format!("--number_ios={}", plan.reads()))
        .arg(format!("--direct={}", is(Column::Direct)))
        .arg(format!("--invalidate={}", is(Column::Cold)));
    if plan.column == Column::Cached {
        // Reads a part of the file repeatedly, so that the blocks are in the page cache.
        fio.arg("--size=6%").arg("--norandommap=1");
    }
    let output = fio.output().context("fio")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", error.lines().next().unwrap_or("fio has failed"));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let number = |pointer: &str| {
        told.pointer(pointer).and_then(|value| value.as_f64()).context(pointer.to_owned())
    };
    let (rate, cpu) = (number("/jobs/0/read/iops")?, number("/jobs/0/usr_cpu")?);
    let cpu = cpu + number("/jobs/0/sys_cpu")?;
    Ok(Measured {
        reads_per_second: rate,
        cpu_us_per_read: cpu / 100.0 * 1e6 / rate,
        p99_us: number("/jobs/0/read/lat_ns/percentile/99.000000")? / 1e3,
        stall_us: None,
        device_share: if plan.column == Column::Cached { 0.0 } else { 1.0 },
    })
}
