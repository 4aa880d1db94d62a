"""What a wheel holds beside the module: the command, the drop-ins, libaio for extensions."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import sysconfig

import pytest

import uringlet

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def from_a_wheel():
    try:
        importlib.metadata.distribution("uringlet")
        uringlet.command()
    except (FileNotFoundError, importlib.metadata.PackageNotFoundError) as error:
        print(f"\nSKIPPED {__name__}: {error}", file=sys.stderr)
        pytest.skip(str(error))


def run(*arguments, **options):
    # This folder has no subfolder called uringlet. Python would look for the module there first.
    options.setdefault("cwd", HERE)
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=120, check=False, **options
    )


def module(*arguments, **options):
    return run(sys.executable, "-m", "uringlet", *arguments, **options)


def test_the_command_can_be_executed():
    assert os.stat(uringlet.command()).st_mode & stat.S_IXUSR
    assert run(uringlet.command(), "--version").stdout.startswith("uringlet ")


def test_the_script_and_the_module_are_the_command():
    script = pathlib.Path(sys.executable).parent / "uringlet"
    for version in (module("--version"), run(str(script), "--version")):
        assert version.returncode == 0 and version.stdout.startswith("uringlet ")


def test_doctor():
    doctor = module("doctor")
    assert doctor.returncode == 0 and "engine" in doctor.stdout.lower()


def test_a_program_runs_on_the_drop_ins(tmp_path):
    program = "print(open('/proc/self/maps').read())"
    ran = module("run", "--", sys.executable, "-c", program)
    assert ran.returncode == 0, ran.stderr
    assert "libaio" in ran.stdout and "posix_aio" in ran.stdout


def test_the_exit_status_is_the_programs():
    assert module("run", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_the_environment_preloads_the_drop_ins():
    program = "print(open('/proc/self/maps').read())"
    folder = f"{uringlet.get_library_dir()}/uringlet"
    both = run(sys.executable, "-c", program, env=uringlet.environment())
    assert f"{folder}/libaio.so" in both.stdout
    assert f"{folder}/libposix_aio.so" in both.stdout
    one = run(sys.executable, "-c", program, env=uringlet.environment({}, only="posix-aio"))
    assert f"{folder}/libaio.so" not in one.stdout
    assert f"{folder}/libposix_aio.so" in one.stdout
    assert uringlet.environment({"LD_PRELOAD": "/x.so"})["LD_PRELOAD"].endswith(":/x.so")
    with pytest.raises(ValueError):
        uringlet.environment(only="io_uring")


def test_env_prints_lines_for_a_shell():
    lines = module("env")
    assert lines.returncode == 0
    script = f"{lines.stdout}\ncat /proc/self/maps"
    shell = run("sh", "-c", script)
    assert f"{uringlet.get_library_dir()}/uringlet/libaio.so" in shell.stdout
    assert module("env", "--only", "nothing").returncode == 1
    assert module("env", "nothing").returncode == 2


def test_check_says_whether_a_process_is_served():
    program = "import sys; print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for environment, status in ((uringlet.environment(), 0), (dict(os.environ), 1)):
        with subprocess.Popen([sys.executable, "-c", program], env=environment, **pipes) as child:
            child.stdout.readline()
            checked = module("check", str(child.pid))
            child.stdin.close()
        assert checked.returncode == status, checked
    assert module("check", "nobody").returncode not in (0, 1)


def test_no_arguments():
    assert module().returncode == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_an_extension_is_built_on_the_wheels_libaio(tmp_path):
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    include, library = uringlet.get_include(), uringlet.get_library_dir()
    extension = tmp_path / f"aioread{suffix}"
    built = run(
        "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror",
        f"-I{sysconfig.get_path('include')}", f"-I{include}", "-o", str(extension),
        str(HERE / "extension/aioread.c"), f"-L{library}", f"-Wl,-rpath,{library}", "-laio",
    )
    assert built.returncode == 0, built.stderr
    needed = run("readelf", "-d", str(extension)).stdout
    assert re.search(r"NEEDED.*\[libaio\.so\.1\]", needed)
    program = (
        "import aioread, os\n"
        "fd = os.open(aioread.__file__, os.O_RDONLY)\n"
        "assert aioread.read(fd, 1, 3) == b'ELF'\n"
        "try:\n"
        "    aioread.read(fd + 100, 0, 1)\n"
        "except OSError as error:\n"
        "    assert error.errno == 9\n"
        "print(open('/proc/self/maps').read())\n"
    )
    ran = run(sys.executable, "-c", program, env={"PYTHONPATH": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr
    assert f"{library}/libaio.so.1" in ran.stdout


LAYOUT = r"""
#include <stddef.h>
#include <stdio.h>
#include <sys/uio.h>
#include <libaio.h>

#define FIELD(f) printf(#f " %zu %zu\n", offsetof(struct iocb, f), sizeof(((struct iocb *)0)->f))
#define PREPARED(call) \
	do { \
		call; \
		fwrite(&iocb, 1, sizeof iocb, stdout); \
	} while (0)

int main(void)
{
	static struct iocb iocb;
	const struct iovec *iov = (void *)0x1000;
	void *buf = (void *)0x2000;

	FIELD(data);
	FIELD(key);
	FIELD(aio_rw_flags);
	FIELD(aio_lio_opcode);
	FIELD(aio_reqprio);
	FIELD(aio_fildes);
	FIELD(u.c.buf);
	FIELD(u.c.nbytes);
	FIELD(u.c.offset);
	FIELD(u.c.flags);
	FIELD(u.c.resfd);
	FIELD(u.v.vec);
	FIELD(u.v.offset);
	FIELD(u.poll.events);
	printf("%zu %zu %d %d\n", sizeof(struct iocb), sizeof(struct io_event), IO_CMD_NOOP,
	       IO_CMD_FDSYNC);
	PREPARED(io_prep_pread(&iocb, 3, buf, 8, 77));
	PREPARED(io_prep_pwrite(&iocb, 3, buf, 8, 77));
	PREPARED(io_prep_preadv(&iocb, 3, iov, 2, 77));
	PREPARED(io_prep_pwritev(&iocb, 3, iov, 2, 77));
	PREPARED(io_prep_preadv2(&iocb, 3, iov, 2, 77, 4));
	PREPARED(io_prep_pwritev2(&iocb, 3, iov, 2, 77, 4));
	PREPARED(io_prep_poll(&iocb, 3, 5));
	PREPARED(io_prep_fsync(&iocb, 3));
	PREPARED(io_prep_fdsync(&iocb, 3));
	PREPARED(io_set_eventfd(&iocb, 9));
	return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_header_has_the_layouts_of_libaios(tmp_path):
    source = tmp_path / "layout.c"
    source.write_text(LAYOUT)
    if run("cc", "-w", "-o", str(tmp_path / "theirs"), str(source)).returncode != 0:
        print("\nSKIPPED the layouts of libaio.h: libaio-dev is not installed", file=sys.stderr)
        pytest.skip("libaio-dev is not installed")
    include = uringlet.get_include()
    ours = run("cc", "-Wall", "-Wextra", "-Werror", f"-I{include}", "-o", str(tmp_path / "ours"),
               str(source))
    assert ours.returncode == 0, ours.stderr
    outputs = [
        subprocess.run([tmp_path / name], capture_output=True, check=True).stdout
        for name in ("ours", "theirs")
    ]
    assert outputs[0] == outputs[1] and len(outputs[0]) > 640
