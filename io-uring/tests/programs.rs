//! Unchanged programs of the distribution, on the library.

use house::House;

#[path = "../../libaio/tests/support/house.rs"]
mod house;
mod support;

/// Makes a disk image. Returns false, and prints that the test is skipped, if the file system has
/// no direct I/O.
fn disk(house: &House, test: &str) -> bool {
    std::fs::write(house.path("disk"), vec![7; 16 << 20]).expect("written");
    house.has_direct(test)
}

#[test]
fn qemu_img_bench_reads_and_writes() {
    let house = House::new();
    if !disk(&house, "qemu_img_bench_reads_and_writes") {
        return;
    }
    let bench = ["bench", "-f", "raw", "-t", "none", "-i", "io_uring", "-c", "2000", "-s", "4096"];
    let mut expected = 0;
    for depth in ["1", "8", "64"] {
        for more in [&[][..], &["-w"], &["-w", "--flush-interval=64"]] {
            house.run("qemu-img", &[&bench[..], &["-d", depth], more, &["disk"]].concat());
            expected += 2000;
            let counted = house.counted();
            assert!(counted.reads + counted.writes >= expected, "{more:?}: {counted:?}");
        }
    }
    assert_eq!(house.counted().errors, 0);
}

#[test]
fn qemu_io_patterns_and_convert() {
    let house = House::new();
    if !disk(&house, "qemu_io_patterns_and_convert") {
        return;
    }
    let options = "driver=file,aio=io_uring,filename=disk";
    let commands = [
        "aio_write -P 11 0 1M",
        "aio_write -P 12 1M 64k",
        "aio_flush",
        "read -P 11 0 1M",
        "read -P 12 1M 64k",
        "read -P 7 2M 1M",
    ];
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    let output = house.run("qemu-io", &[&["--image-opts", options][..], &commands].concat());
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(!out.contains("Pattern verification failed"), "{out}");
    let convert = ["convert", "-t", "none", "-T", "none", "--image-opts", options, "-O", "raw"];
    house.run("qemu-img", &[&convert[..], &["copy"]].concat());
    let read = |name| std::fs::read(house.path(name)).expect("it is there");
    assert!(read("disk") == read("copy"), "the copy differs");
    assert!(house.counted().requests() >= 10, "{:?}", house.counted());
}

/// stress-ng makes its calls through `syscall()`.
#[test]
fn stress_ng_io_uring_verifies() {
    let house = House::new();
    let times = ["--io-uring", "2", "--io-uring-ops", "2000", "--timeout", "60"];
    house.run("stress-ng", &[&times[..], &["--verify", "--temp-path", "."]].concat());
    let counted = house.counted();
    assert!(counted.contexts >= 2 && counted.requests() > 100, "{counted:?}");
}

/// fio makes its calls by instructions of its own.
#[test]
fn fio_verifies_what_it_has_written() {
    let house = House::new();
    let job = ["--name=job", "--filename=file", "--size=2M", "--bs=4k", "--rw=randrw"];
    let check = ["--verify=crc32c", "--ioengine=io_uring", "--iodepth=16"];
    let options: [&[&str]; 4] = [
        &[],
        &["--registerfiles=1", "--fixedbufs=1"],
        &["--sqthread_poll=1"],
        &["--iodepth=1", "--nonvectored=1"],
    ];
    for (at, more) in options.into_iter().enumerate() {
        house.run("fio", &[&job[..], &check, more].concat());
        let counted = house.counted();
        assert!(counted.requests() >= 512 * (at as u64 + 1), "{more:?}: {counted:?}");
    }
    if disk(&house, "fio_verifies_what_it_has_written") {
        house.run("fio", &[&job[..], &check, &["--hipri=1", "--direct=1"]].concat());
    }
    assert_eq!(house.counted().errors, 0);
}
