//! A note in the ELF file of a drop-in (elf(5)), by which `uringlet check` recognizes it, whatever
//! its name. The io_uring drop-in searches the files of a process for system call instructions. It
//! leaves out files with this note, so the command has the note, too.

/// The owner of the note, as in the file.
pub const OWNER: &[u8; 9] = b"uringlet\0";
/// The type of the note whose description is the version of the package.
pub const VERSION: u32 = 1;

/// The note, in the layout of elf(5); its parts are padded to four bytes.
#[repr(C)]
#[derive(Debug)]
pub struct Note {
    name_size: u32,
    description_size: u32,
    kind: u32,
    name: [u8; 12],
    description: [u8; 16],
}

impl Note {
    /// A note with a version of at most 16 bytes; a longer one is cut.
    pub const fn new(version: &str) -> Self {
        let mut note = Self {
            name_size: OWNER.len() as u32,
            description_size: 16,
            kind: VERSION,
            name: [0; 12],
            description: [0; 16],
        };
        let mut at = 0;
        while at < OWNER.len() {
            note.name[at] = OWNER[at];
            at += 1;
        }
        at = 0;
        while at < version.len() && at < note.description.len() {
            note.description[at] = version.as_bytes()[at];
            at += 1;
        }
        note
    }
}

/// Writes the note into the file of a drop-in, or of the command. For use once in each.
#[doc(hidden)]
#[macro_export]
macro_rules! note {
    () => {
        const _: () = {
            #[used]
            #[unsafe(link_section = ".note.uringlet")]
            static NOTE: $crate::front::note::Note =
                $crate::front::note::Note::new(env!("CARGO_PKG_VERSION"));
        };
    };
}

#[cfg(test)]
mod tests {
    use super::{Note, OWNER};

    #[test]
    fn a_note_has_the_layout_of_its_manual_page() {
        assert_eq!(std::mem::offset_of!(Note, name), 12);
        assert_eq!(std::mem::offset_of!(Note, description), 12 + OWNER.len().next_multiple_of(4));
        assert_eq!((size_of::<Note>(), align_of::<Note>()), (40, 4));
        let note = Note::new("10.20.30-beta");
        assert_eq!(&note.description[..14], b"10.20.30-beta\0");
        assert_eq!(&note.name[..9], OWNER);
    }
}
