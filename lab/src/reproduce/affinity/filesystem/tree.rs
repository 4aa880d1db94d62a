//! A source tree of the project's own, the same in every run, packed by tar(5).

use std::fmt::Write as _;

/// The size of the tree.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// C files.
    pub sources: usize,
    /// Files that are not compiled: most files of a real tree.
    pub others: usize,
    /// The size of the smallest file system for the tree, in bytes. File systems have a multiple of
    /// this size.
    pub room: u64,
}

impl Shape {
    pub const FULL: Self = Self { sources: 48, others: 2048, room: 64 << 20 };
    pub const QUICK: Self = Self { sources: 4, others: 16, room: 16 << 20 };
}

const FOLDERS: usize = 8;
const FUNCTIONS: usize = 24;
/// Bytes of each file that is no source.
const OTHER: usize = 16 << 10;

const MAKEFILE: &str = "\
objects := $(patsubst %.c,%.o,$(wildcard part*/*.c))

program: $(objects) main.o
\tcc -o $@ $^

%.o: %.c
\tcc -O1 -c -o $@ $<

clean:
\trm -f program main.o $(objects)

.PHONY: clean
";

/// The packed tree. `make` builds `program` from its files, and `make clean` restores it.
///
/// # Errors
/// The tree could not be packed.
pub fn pack(shape: Shape) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: String, text: &str| {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1 << 30);
        tar.append_data(&mut header, name, text.as_bytes())
    };
    add("Makefile".into(), MAKEFILE)?;
    let mut main = String::new();
    for file in 0..shape.sources {
        let _ = writeln!(main, "unsigned run_{file}(unsigned value);");
    }
    main.push_str("int main(void)\n{\n    unsigned value = 1;\n");
    for file in 0..shape.sources {
        let _ = writeln!(main, "    value = run_{file}(value);");
    }
    main.push_str("    return value == 0;\n}\n");
    add("main.c".into(), &main)?;
    for file in 0..shape.sources {
        add(format!("part{}/source_{file}.c", file % FOLDERS), &source(file))?;
    }
    for file in 0..shape.others {
        let line = format!("Line of file {file}, which is unpacked, and removed by nobody.\n");
        let text = line.repeat(OTHER / line.len());
        add(format!("part{}/text_{file}.txt", file % FOLDERS), &text)?;
    }
    tar.into_inner()
}

/// One C file: its last function calls all static functions, so that the compiler keeps them.
fn source(file: usize) -> String {
    let mut text = String::new();
    for function in 0..FUNCTIONS {
        let (seed, shift) = (file * FUNCTIONS + function + 1, function % 31 + 1);
        let _ = write!(
            text,
            "static unsigned step_{function}(unsigned value)\n{{\n    \
             for (unsigned at = 0; at < {seed}u; at++)\n        \
             value = (value << {shift} | value >> {rest}) * {odd}u + at;\n    \
             return value;\n}}\n\n",
            rest = 32 - shift,
            odd = seed * 2 + 1,
        );
    }
    let _ = write!(text, "unsigned run_{file}(unsigned value)\n{{\n");
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "    value = step_{function}(value);");
    }
    text.push_str("    return value;\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_each_time_and_has_what_the_shape_says() {
        let packed = pack(Shape::QUICK).unwrap();
        assert_eq!(packed, pack(Shape::QUICK).unwrap());
        let mut archive = tar::Archive::new(&*packed);
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        let ending = |end: &str| names.iter().filter(|name| name.ends_with(end)).count();
        assert_eq!(ending(".c"), Shape::QUICK.sources + 1);
        assert_eq!(ending(".txt"), Shape::QUICK.others);
    }
}
