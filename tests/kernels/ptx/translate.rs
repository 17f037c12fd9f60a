//! PTX as C++, statement by statement. `ptx.h` says what the instructions mean.

use super::module::{Kernel, Module, Registers, Statement, Variable};

/// What a planted fault puts in the place of the statement of a line: another one, or nothing.
#[derive(Debug)]
pub struct Fault {
    pub line: usize,
    pub instead: Option<Statement>,
}

impl Module {
    /// The kernels as the harness runs them. `#line` lets sanitizers name lines of the PTX.
    ///
    /// One build has all faults. The variable `HARNESS_FAULT` chooses one when the program starts: 0 is none, 1 the
    /// first.
    pub fn translate(&self, faults: &[Fault]) -> Result<String, String> {
        let mut code = String::from("#include \"ptx.h\"\nusing namespace ptx;\n");
        for variable in &self.globals {
            code += &format!(
                "{} = {};\n",
                declaration(variable, "static const"),
                variable.value
            );
        }
        for kernel in &self.kernels {
            code += &self.kernel(kernel, faults)?;
        }
        Ok(code)
    }

    fn kernel(&self, kernel: &Kernel, faults: &[Fault]) -> Result<String, String> {
        let (file, name) = (&self.file, &kernel.name);
        let parameter = kernel.parameter.as_ref();
        let parameter = parameter.ok_or_else(|| format!("{file}: {name} has no parameter"))?;
        let mut code = format!(
            "extern \"C\" void {name}(hybrid_pages::Paging paging) {{\n\
             const hybrid_pages::Paging {} = paging;\n\
             static_assert(sizeof paging == {}, \"as in paging.h\");\n",
            parameter.name,
            parameter.count.unwrap_or(1)
        );
        for variable in &kernel.shared {
            code += &format!("{};\n", declaration(variable, "static"));
        }
        for Registers {
            kind,
            prefix,
            count,
        } in &kernel.registers
        {
            for number in 0..*count {
                let name = identifier(&format!("{prefix}{number}"));
                code += &format!("{kind} {name} = {kind}(JUNK);\n");
            }
        }
        for block in &kernel.blocks {
            if let Some(label) = &block.label {
                code += &format!("{label}:;\n");
            }
            if let Some(first) = block.statements.first() {
                code += &format!("lines.reach({});\n", first.line);
            }
            for statement in &block.statements {
                let cpp = self.either(kernel, statement, faults)?;
                code += &format!("#line {} \"{file}\"\n{cpp}\n", statement.line);
            }
        }
        Ok(code + "}\n")
    }

    /// The statement, or the fault that is planted there.
    fn either(
        &self,
        kernel: &Kernel,
        sound: &Statement,
        faults: &[Fault],
    ) -> Result<String, String> {
        let mut code = self.statement(kernel, sound)?;
        for (index, fault) in faults.iter().enumerate() {
            if fault.line == sound.line {
                let instead = fault.instead.as_ref();
                let instead =
                    instead.map_or(Ok(String::new()), |instead| self.statement(kernel, instead))?;
                code = format!(
                    "if (fault == {}) {{ {instead} }} else {{ {code} }}",
                    index + 1
                );
            }
        }
        Ok(code)
    }

    fn statement(&self, kernel: &Kernel, statement: &Statement) -> Result<String, String> {
        let scope = Scope {
            module: self,
            kernel,
        };
        let code = scope.instruction(statement);
        let code = code.ok_or_else(|| self.unknown(statement.line, &statement.to_string()))?;
        Ok(match statement.guard.strip_prefix('!') {
            _ if statement.guard.is_empty() => code,
            Some(register) => format!("if (!{}) {{ {code} }}", identifier(register)),
            None => format!("if ({}) {{ {code} }}", identifier(&statement.guard)),
        })
    }
}

/// What names in a kernel stand for.
struct Scope<'a> {
    module: &'a Module,
    kernel: &'a Kernel,
}

impl Scope<'_> {
    /// The instruction as a statement of C++, if it is of a form that the kernels use.
    fn instruction(&self, statement: &Statement) -> Option<String> {
        let words: Vec<&str> = statement.opcode.split('.').collect();
        let operands: Vec<&str> = statement.operands.iter().map(String::as_str).collect();
        if let ["ld" | "st", ..] = words[..] {
            return self.access(&words, &operands);
        }
        if let (["bra"] | ["bra", "uni"], [label]) = (&words[..], &operands[..]) {
            return Some(format!("goto {label};"));
        }
        let values = operands.iter().map(|operand| self.value(operand));
        let values: Vec<String> = values.collect::<Option<_>>()?;
        Some(match (&words[..], &values[..]) {
            (["add" | "sub" | "div" | "rem" | "max", kind], [to, a, b]) => {
                format!("{to} = {}<{}>({a}, {b});", words[0], integer(kind)?)
            }
            (["mul", "lo", kind], [to, a, b]) => {
                format!("{to} = mul_lo<{}>({a}, {b});", integer(kind)?)
            }
            (["mul", "wide", "u32"], [to, a, b]) => format!("{to} = mul_wide_u32({a}, {b});"),
            (["and" | "or" | "xor", kind], [to, a, b]) => {
                format!("{to} = bit_{}<{}>({a}, {b});", words[0], bits(kind)?)
            }
            (["not", kind], [to, a]) => format!("{to} = bit_not<{}>({a});", bits(kind)?),
            (["shl" | "shr", kind], [to, a, by]) => {
                format!("{to} = {}<{}>({a}, {by});", words[0], integer(kind)?)
            }
            (
                [
                    "setp",
                    comparison @ ("eq" | "ne" | "lt" | "le" | "gt" | "ge"),
                    kind,
                ],
                [to, a, b],
            ) => {
                format!("{to} = {comparison}<{}>({a}, {b});", integer(kind)?)
            }
            (["selp", kind], [to, a, b, p]) => {
                format!("{to} = selp<{}>({a}, {b}, {p});", integer(kind)?)
            }
            (["cvt", kind, from], [to, a]) => {
                format!("{to} = {}({}({a}));", integer(kind)?, integer(from)?)
            }
            (["mov", kind], [to, a]) => format!("{to} = {}({a});", integer(kind)?),
            (["cvta", "to", "global", "u64"], [to, a]) => format!("{to} = {a};"),
            (["bar", "sync"], _) if operands == ["0"] => "__syncthreads();".into(),
            (["ret"], []) => "return;".into(),
            _ => return None,
        })
    }

    /// `ld` and `st`, of one value or of a vector of two.
    fn access(&self, words: &[&str], operands: &[&str]) -> Option<String> {
        let (kind, words) = words.split_last()?;
        let kind = integer(kind)?;
        let (words, count) = match words {
            [words @ .., "v2"] => (words, 2),
            _ => (words, 1),
        };
        let (way, space) = match words {
            [way @ "ld", space @ ("global" | "shared" | "param")] => (way, *space),
            [way @ "ld", "global", "nc"] => (way, "global"),
            [way @ "st", space @ ("global" | "shared")] => (way, *space),
            [way @ ("ld" | "st")] => (way, "generic"),
            _ => return None,
        };
        let (value, address) = match (*way, operands) {
            ("ld", [value, address]) | ("st", [address, value]) => (value, address),
            _ => return None,
        };
        let values = value
            .trim_matches(['{', '}'])
            .split(',')
            .map(|value| self.value(value));
        let values: Vec<String> = values.collect::<Option<_>>()?;
        let address = address.strip_prefix('[')?.strip_suffix(']')?;
        let (base, offset) = address.split_once('+').unwrap_or((address, "0"));
        let (base, offset) = (self.value(base)?, offset.parse::<i32>().ok()?);
        let values = (values.len() == count).then(|| values.join(", "))?;
        Some(format!(
            "{way}<Space::{space}, {kind}>({base} + {offset}, {values});"
        ))
    }

    fn value(&self, operand: &str) -> Option<String> {
        if let Ok(number) = operand.parse::<i64>() {
            return Some(format!("{number:#x}"));
        }
        let is_named = |variable: &Variable| variable.name == operand;
        Some(match operand {
            "%tid.x" => "threadIdx.x".into(),
            "%ntid.x" => "blockDim.x".into(),
            "%ctaid.x" => "blockIdx.x".into(),
            "%nctaid.x" => "gridDim.x".into(),
            _ if self.is_register(operand) => identifier(operand),
            _ if self.kernel.shared.iter().any(is_named) => {
                format!("(address_of({operand}) + SHARED)")
            }
            _ if self.module.globals.iter().any(is_named)
                || self.kernel.parameter.iter().any(is_named) =>
            {
                format!("address_of({operand})")
            }
            _ => return None,
        })
    }

    fn is_register(&self, operand: &str) -> bool {
        self.kernel.registers.iter().any(|registers| {
            let number = operand.strip_prefix(&registers.prefix);
            number
                .and_then(|number| number.parse().ok())
                .is_some_and(|number: usize| number < registers.count)
        })
    }
}

/// The name of a register in C++.
fn identifier(register: &str) -> String {
    register.trim_start_matches('%').into()
}

fn declaration(variable: &Variable, storage: &str) -> String {
    let Variable {
        name,
        align,
        kind,
        count,
        ..
    } = variable;
    let count = count.map(|count| format!("[{count}]")).unwrap_or_default();
    format!("alignas({align}) {storage} {kind} {name}{count}")
}

fn integer(kind: &str) -> Option<&str> {
    let (sign, size) = kind.split_at_checked(1)?;
    (["u", "s", "b"].contains(&sign) && ["8", "16", "32", "64"].contains(&size)).then_some(kind)
}

fn bits(kind: &str) -> Option<&str> {
    match kind {
        "pred" => Some(kind),
        _ => integer(kind).filter(|kind| kind.starts_with('b')),
    }
}
