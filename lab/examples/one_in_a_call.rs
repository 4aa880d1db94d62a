//! Submits one request per call through a `Context`. `ci/instructions.sh` counts the instructions.
//!
//! `one_in_a_call FILE read|write DEPTH UNCOUNTED COUNTED` does what `ci/instructions.c` does
//! through other interfaces.
#![allow(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use uringlet::{Context, Sqe};

const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, what, depth, uncounted, counted] = &arguments[..] else {
        return Err("FILE read|write DEPTH UNCOUNTED COUNTED".into());
    };
    let file = File::options().read(true).write(true).open(path)?;
    let (fd, writes) = (file.as_raw_fd(), what == "write");
    let (depth, uncounted): (usize, usize) = (depth.parse()?, uncounted.parse()?);
    let counted: usize = counted.parse()?;
    let length = if writes { PAGE / 4 } else { PAGE };
    let mut buffers = vec![[0u8; PAGE]; depth];
    let mut context = Context::new(u32::try_from(depth)?)?;
    let mut submit = |context: &mut Context, one: usize| {
        let (buffer, offset) = (&mut buffers[one][..length], (one * PAGE) as u64);
        let sqe = match writes {
            true => Sqe::write(fd, &*buffer, offset),
            false => Sqe::read(fd, buffer, offset),
        };
        // SAFETY: the buffer is used by one request at a time, and outlives all of them.
        let pushed = unsafe { context.push(sqe.user_data(one as u64)) };
        assert!(pushed.is_ok() && context.submit().is_ok_and(|accepted| accepted == 1));
    };
    let take = |context: &mut Context| -> std::io::Result<usize> {
        context.wait(1, None)?;
        let cqe = context.reap().expect("one was waited for");
        assert_eq!(cqe.result()?, length as u32);
        Ok(cqe.user_data as usize)
    };
    (0..depth).for_each(|one| submit(&mut context, one));
    for _ in 0..uncounted {
        let one = take(&mut context)?;
        submit(&mut context, one);
    }
    breakpoint();
    for _ in 0..counted {
        let one = take(&mut context)?;
        submit(&mut context, one);
    }
    breakpoint();
    Ok(())
}

/// Tells `ci/steps.c` where counting begins and ends.
fn breakpoint() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `int3` traps, and changes no register or memory.
    unsafe {
        std::arch::asm!("int3");
    }
}
