//! The room of a context, as front ends see it: a submit may have more entries than there is room
//! for.

use uringlet::Sqe;
use uringlet::front::{DirectCompletions, Entry, Instance};

use crate::common::{LONG, bounded, builder};

#[test]
fn a_submit_larger_than_the_room_is_accepted_exactly_up_to_it() {
    let _bounded = bounded(LONG);
    let (count, room) = (1000, 128);
    let instance = Instance::new(&builder().entries(room)).expect("a context");
    let entries: Vec<Entry> = (0..count)
        .map(|number| Entry { sqe: Sqe::nop().user_data(number), data: 0, notify: -1 })
        .collect();
    let mut completed = vec![0; entries.len()];
    let mut left = &entries[..];
    while !left.is_empty() {
        let expected = left.len().min(room as usize);
        // SAFETY: a nop has no addresses.
        let submitted = unsafe { instance.submit(left) };
        assert_eq!(submitted.accepted, expected);
        let refused = if left.len() > expected { -libc::EAGAIN } else { 0 };
        assert_eq!(submitted.refused, refused);
        left = &left[expected..];
        let mut awaited = expected as u32;
        while awaited > 0 {
            instance.wait(1, 1, None, None, &mut DirectCompletions::new(0, &mut |_, _, _| {}));
            awaited -= instance.reap(u32::MAX, |cqe| {
                assert_eq!(cqe.res, 0);
                completed[cqe.user_data as usize] += 1;
            });
        }
    }
    instance.close();
    assert!(completed.iter().all(|&times| times == 1), "{completed:?}");
}
