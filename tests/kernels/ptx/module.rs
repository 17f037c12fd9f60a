//! A file of PTX as NVRTC writes it: one declaration or statement a line.

use std::collections::BTreeSet;
use std::fmt;

/// `@guard opcode operands;`
#[derive(Debug, Clone)]
pub struct Statement {
    pub line: usize,
    /// `%p1`, `!%p1`, or nothing.
    pub guard: String,
    pub opcode: String,
    pub operands: Vec<String>,
}

/// Statements that run one after the other: only the last one may branch.
#[derive(Debug, Default)]
pub struct Block {
    pub label: Option<String>,
    pub statements: Vec<Statement>,
}

/// Memory with a name, of so many elements.
#[derive(Debug)]
pub struct Variable {
    pub name: String,
    pub align: u32,
    /// Of an element.
    pub kind: String,
    pub count: Option<usize>,
    /// As it is written in PTX, which is as in C++.
    pub value: String,
}

#[derive(Debug)]
pub struct Registers {
    pub kind: String,
    pub prefix: String,
    pub count: usize,
}

#[derive(Debug, Default)]
pub struct Kernel {
    pub name: String,
    /// What is launched with: one struct by value.
    pub parameter: Option<Variable>,
    pub registers: Vec<Registers>,
    pub shared: Vec<Variable>,
    pub blocks: Vec<Block>,
}

impl Kernel {
    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.blocks.iter().flat_map(|block| &block.statements)
    }

    fn push(&mut self, statement: Statement) {
        let last = self.blocks.last().map(|block| block.statements.last());
        if last.is_none_or(|last| last.is_some_and(Statement::may_branch)) {
            self.blocks.push(Block::default());
        }
        self.blocks
            .last_mut()
            .expect("there is one")
            .statements
            .push(statement);
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.guard.is_empty() {
            write!(f, "@{} ", self.guard)?;
        }
        let space = if self.operands.is_empty() { "" } else { " " };
        write!(f, "{}{space}{};", self.opcode, self.operands.join(", "))
    }
}

impl Statement {
    fn may_branch(&self) -> bool {
        !self.guard.is_empty() || self.opcode.starts_with("bra") || self.opcode == "ret"
    }
}

#[derive(Debug, Default)]
pub struct Module {
    pub file: String,
    pub globals: Vec<Variable>,
    pub kernels: Vec<Kernel>,
}

impl Module {
    pub fn parse(file: &str, text: &str) -> Result<Self, String> {
        let mut module = Self {
            file: file.into(),
            ..Self::default()
        };
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default().trim();
            if module.read(index + 1, code).is_none() {
                return Err(module.unknown(index + 1, code));
            }
        }
        Ok(module)
    }

    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.kernels.iter().flat_map(Kernel::statements)
    }

    /// The lines of all statements in blocks that begin at one of the lines `first`.
    pub fn reached(&self, first: &BTreeSet<usize>) -> BTreeSet<usize> {
        let blocks = self.kernels.iter().flat_map(|kernel| &kernel.blocks);
        let reached = blocks.filter(|block| {
            let statement = block.statements.first();
            statement.is_some_and(|statement| first.contains(&statement.line))
        });
        let lines =
            reached.flat_map(|block| block.statements.iter().map(|statement| statement.line));
        lines.collect()
    }

    /// Takes a line in, unless it is of an unknown form.
    fn read(&mut self, line: usize, code: &str) -> Option<()> {
        let words: Vec<&str> = code.split_whitespace().collect();
        let kernel = self.kernels.last_mut();
        match words.as_slice() {
            [] | ["{" | "}" | ")"] | [".address_size", "64"] | [".pragma", "\"nounroll\";"] => {}
            [".version" | ".target" | ".maxntid" | ".minnctapersm", ..] => {}
            [".visible", ".entry", name] => self.kernels.push(Kernel {
                name: name.strip_suffix('(')?.into(),
                ..Kernel::default()
            }),
            [".global", ..] if code.contains(" = ") => {
                self.globals.push(variable(code.strip_suffix(';')?)?)
            }
            [".shared", ..] => kernel?.shared.push(variable(code.strip_suffix(';')?)?),
            [".param", ..] if kernel.as_ref()?.parameter.is_none() => {
                kernel?.parameter = Some(variable(code)?);
            }
            [".reg", kind, range] => {
                let (prefix, count) = range.strip_suffix(">;")?.split_once('<')?;
                kernel?.registers.push(Registers {
                    kind: kind.strip_prefix('.')?.into(),
                    prefix: prefix.into(),
                    count: count.parse().ok()?,
                });
            }
            [label] if label.ends_with(':') => {
                kernel?.blocks.push(Block {
                    label: Some(label.strip_suffix(':')?.into()),
                    statements: Vec::new(),
                });
            }
            _ => kernel?.push(statement(line, code)?),
        }
        Some(())
    }

    /// The error for a line that the tests cannot run.
    pub fn unknown(&self, line: usize, code: &str) -> String {
        format!(
            "{}:{line}: expected PTX of a form that tests/kernels/ptx/ knows, found `{code}`: teach it that form",
            self.file
        )
    }
}

/// `.space .align 8 .b8 name[48] = {1, 2}`, with or without a number of elements and a value.
fn variable(code: &str) -> Option<Variable> {
    let (declaration, value) = code.split_once(" = ").unwrap_or((code, ""));
    let [_, ".align", align, kind, name] = declaration.split_whitespace().collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let (name, count) = match name.split_once('[') {
        Some((name, count)) => (name, Some(count.strip_suffix(']')?.parse().ok()?)),
        None => (name, None),
    };
    Some(Variable {
        name: name.into(),
        align: align.parse().ok()?,
        kind: kind.strip_prefix('.')?.into(),
        count,
        value: value.into(),
    })
}

fn statement(line: usize, code: &str) -> Option<Statement> {
    let code = code.strip_suffix(';')?;
    let (guard, code) = match code.strip_prefix('@') {
        Some(guarded) => guarded.split_once(char::is_whitespace)?,
        None => ("", code),
    };
    let (opcode, operands) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
    let (mut parts, mut within) = (vec![String::new()], false);
    for letter in operands.chars().filter(|letter| !letter.is_whitespace()) {
        match letter {
            ',' if !within => parts.push(String::new()),
            _ => {
                within = (within || letter == '{') && letter != '}';
                parts.last_mut()?.push(letter);
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    Some(Statement {
        line,
        guard: guard.into(),
        opcode: opcode.into(),
        operands: parts,
    })
}
