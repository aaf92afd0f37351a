//! Scenario files: commands, each with the lines it is expected to print, and comments between them.

/// A scenario file, taken apart.
#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub items: Vec<Item>,
}

/// A part of a scenario file.
#[derive(Clone, Debug)]
pub enum Item {
    /// A comment or a blank line.
    Text(String),
    /// A command.
    Command(Command),
}

/// A command and what is expected of it.
#[derive(Clone, Debug)]
pub struct Command {
    /// Its line in the file, from 1.
    pub line: usize,
    pub text: String,
    /// What `+` lines add to it.
    pub additions: Vec<String>,
    pub expected: Vec<String>,
}

/// Something wrong with a scenario, or a broker that does not do what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub file: String,
    pub line: usize,
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "core/tests/scenarios/{}:{}: {}", self.file, self.line, self.message)
    }
}

/// The most lines of the comment that states the rule.
const HEADER_LINES_MAX: usize = 3;

impl Script {
    pub fn parse(name: &str, text: &str) -> Result<Self, Failure> {
        let failure = |line: usize, message: &str| Failure { file: name.to_owned(), line, message: message.to_owned() };
        let mut items = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let last = match items.last_mut() {
                Some(Item::Command(command)) => Some(command),
                _ => None,
            };
            if line.trim().is_empty() || line.starts_with('#') {
                items.push(Item::Text(line.to_owned()));
            } else if let Some(text) = line.strip_prefix("> ") {
                let (additions, expected) = Default::default();
                items.push(Item::Command(Command { line: number, text: text.to_owned(), additions, expected }));
            } else if let Some(text) = line.strip_prefix("+ ") {
                let open = last.filter(|command| command.expected.is_empty());
                let command = open.ok_or_else(|| failure(number, "a + line must follow a command"))?;
                command.additions.push(text.to_owned());
            } else if let Some(text) = line.strip_prefix("  ") {
                let command = last.ok_or_else(|| failure(number, "an expected line must follow a command"))?;
                command.expected.push(text.trim_end().to_owned());
            } else {
                return Err(failure(number, "a line starts with #, >, + or two spaces"));
            }
        }
        let header = items.iter().take_while(|item| matches!(item, Item::Text(text) if text.starts_with('#'))).count();
        if !(1..=HEADER_LINES_MAX).contains(&header) {
            return Err(failure(1, "a scenario opens with a comment of one to three lines that states the rule"));
        }
        let script = Self { name: name.to_owned(), items };
        if script.commands().next().is_none() {
            return Err(failure(1, "a scenario without commands"));
        }
        Ok(script)
    }

    pub fn commands(&self) -> impl Iterator<Item = &Command> {
        self.items.iter().filter_map(|item| match item {
            Item::Command(command) => Some(command),
            Item::Text(_) => None,
        })
    }

    pub fn commands_mut(&mut self) -> impl Iterator<Item = &mut Command> {
        self.items.iter_mut().filter_map(|item| match item {
            Item::Command(command) => Some(command),
            Item::Text(_) => None,
        })
    }

    /// The file's text.
    pub fn print(&self) -> String {
        let mut text = String::new();
        for item in &self.items {
            match item {
                Item::Text(line) => text += &format!("{line}\n"),
                Item::Command(command) => {
                    text += &format!("> {}\n", command.text);
                    command.additions.iter().for_each(|line| text += &format!("+ {line}\n"));
                    command.expected.iter().for_each(|line| text += &format!("  {line}\n"));
                }
            }
        }
        text
    }
}

/// The difference between expected and actual lines: `-` expected, `+` actual.
pub fn diff(expected: &[String], actual: &[String]) -> String {
    let same = |(left, right): &(&String, &String)| left == right;
    let before = expected.iter().zip(actual).take_while(same).count();
    let after = expected[before..].iter().rev().zip(actual[before..].iter().rev()).take_while(same).count();
    let changed = |lines: &[String], mark: char| -> String {
        lines[before..lines.len() - after].iter().map(|line| format!("\n  {mark} {line}")).collect()
    };
    let kept = |lines: &[String]| -> String { lines.iter().map(|line| format!("\n    {line}")).collect() };
    let (head, tail) = (kept(&expected[..before]), kept(&expected[expected.len() - after..]));
    head + &changed(expected, '-') + &changed(actual, '+') + &tail
}
