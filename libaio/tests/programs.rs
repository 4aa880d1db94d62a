//! Programs of the distribution, unchanged: their own checks pass, and their requests went through
//! the drop-in.
//!
//! MariaDB has a script of its own: `ci/mariadb.sh`.

use house::House;
use std::path::Path;
use std::process::Command;

#[path = "support/house.rs"]
mod house;
mod support;

/// stress-ng makes its requests through `syscall()`.
#[test]
fn stress_ng_aiol_verifies() {
    let house = House::new();
    house.run("stress-ng", &["--aiol", "4", "--verify", "--timeout", "3", "--temp-path", "."]);
    let counted = house.counted();
    assert!(counted.contexts >= 4 && counted.requests() > 1000, "{counted:?}");
    assert_eq!(counted.errors, 0, "{counted:?}");
}

/// POSIX AIO is not handled by this library, and works beside it.
#[test]
fn stress_ng_aio_verifies_untouched() {
    let house = House::new();
    house.run("stress-ng", &["--aio", "4", "--verify", "--timeout", "1", "--temp-path", "."]);
    assert_eq!(house.counted().contexts, 0);
}

/// ioping makes its requests through `syscall()`, too.
#[test]
fn ioping_with_asynchronous_io() {
    let house = House::new();
    house.image("file", 1 << 20);
    house.run("ioping", &["-A", "-B", "-c", "20", "-i", "0", "file"]);
    house.run("ioping", &["-A", "-B", "-WWW", "-c", "20", "-i", "0", "file"]);
    let counted = house.counted();
    assert_eq!((counted.contexts, counted.reads, counted.writes), (2, 20, 20), "{counted:?}");
}

/// qemu-img never calls io_getevents, but reads the ring when its eventfd is readable.
#[test]
fn qemu_img_bench_drained_and_not() {
    let house = House::new();
    if !house.has_direct("qemu_img_bench_drained_and_not") {
        return;
    }
    house.image("disk", 16 << 20);
    let bench = ["bench", "-f", "raw", "-t", "none", "-i", "native", "-c", "2000", "-d", "32"];
    let cases: [&[&str]; 4] = [
        &[],
        &["-w"],
        &["-w", "--flush-interval=64"],
        &["-w", "--flush-interval=64", "--no-drain"],
    ];
    for (case, more) in (1..).zip(cases) {
        house.run("qemu-img", &[&bench, more, &["disk"]].concat());
        let counted = house.counted();
        assert_eq!(counted.requests(), 2000 * case, "{more:?}: {counted:?}");
    }
    assert_eq!(house.counted().errors, 0);
}

/// A daemon: its first process opens the disk and forks, and a child serves the disk.
#[test]
fn qemu_nbd_as_a_daemon() {
    /// Ends the server, also if a check fails.
    struct Server(String);
    impl Drop for Server {
        fn drop(&mut self) {
            let _ = Command::new("kill").arg(&self.0).status();
        }
    }
    let house = House::new();
    if !house.has_direct("qemu_nbd_as_a_daemon") {
        return;
    }
    let disk = house.image("disk", 16 << 20);
    // The path of a socket must be short.
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, pid) = (folder.path().join("s"), folder.path().join("pid"));
    let [socket, pid, disk] = [&socket, &pid, &disk].map(|path| path.to_str().expect("text"));
    let native = ["--fork", "-t", "-f", "raw", "--aio=native", "--cache=none"];
    house.run("qemu-nbd", &[&native[..], &["-k", socket, "--pid-file", pid, disk]].concat());
    let server = Server(std::fs::read_to_string(pid).expect("written").trim().to_owned());
    for more in [&[][..], &["-w"]] {
        let bench = ["bench", "-f", "raw", "-c", "1000", "-d", "16"];
        let target = format!("nbd+unix:///?socket={socket}");
        let output = Command::new("timeout")
            .args(["60", "qemu-img"])
            .args([&bench, more, &[&target]].concat())
            .output()
            .expect("timeout(1)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    drop(server);
    let counted = house.counted();
    assert!(counted.reads >= 1000 && counted.writes >= 1000 && counted.errors == 0, "{counted:?}");
}

#[test]
fn qemu_img_convert_copies_all() {
    let house = House::new();
    if !house.has_direct("qemu_img_convert_copies_all") {
        return;
    }
    let from = house.image("from", 16 << 20);
    let to = house.path("to");
    std::fs::File::create(&to).and_then(|file| file.set_len(16 << 20)).expect("made");
    let file = |path: &Path| {
        let options = "driver=raw,file.driver=file,file.aio=native,file.cache.direct=on";
        format!("{options},file.filename={}", path.display())
    };
    let arguments = ["convert", "-n", "--image-opts", "--target-image-opts"];
    house.run("qemu-img", &[&arguments[..], &[&file(&from), &file(&to)]].concat());
    assert!(std::fs::read(from).expect("read") == std::fs::read(to).expect("read"), "not equal");
    let counted = house.counted();
    assert_eq!((counted.bytes_read, counted.bytes_written), (16 << 20, 16 << 20), "{counted:?}");
}

#[test]
fn fio_verifies_what_it_wrote() {
    let house = House::new();
    let common = ["--name=job", "--filename=file", "--size=8M", "--ioengine=libaio", "--rw=randrw"];
    let verify = ["--iodepth=32", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"];
    let direct = if house.has_direct("fio_verifies_what_it_wrote/direct") { 1 } else { 0 };
    for more in
        [&[][..], &["--userspace_reap"], &["--direct=1"], &["--direct=1", "--userspace_reap"]]
    {
        if direct == 0 && more.contains(&"--direct=1") {
            continue;
        }
        let before = house.counted().requests();
        house.run("fio", &[&common[..], &verify, more].concat());
        // fio reads or writes each of 2,048 blocks once, and then reads the written ones to verify
        // them.
        let counted = house.counted();
        assert!(counted.requests() - before >= 2048, "{more:?}: {counted:?}");
        assert_eq!(counted.errors, 0, "{more:?}");
    }
}
