//! `autoreg chat`: a conversation in the terminal, by the model's own template.
//!
//! Words of people are plain text whatever they are: the names of control tokens stand for them in
//! what the template itself writes, never in a message. Ctrl-C ends the answer, not the program.

use crate::cmd::from_logits::DecodingArgs;
use crate::cmd::model::{AnySource, Opened, Template, engine_error};
use crate::cmd::{AdapterArgs, KvArgs};
use crate::error::CliError;
use crate::term;
use chat::{ChatTemplate, Message, Stretch};
use clap::Args;
use decoding::{Rule, Rules};
use engine::{Event, Finish, Generator, Prompt, Request, Truncate};
use signal_hook::consts::SIGINT;
use std::io::{BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokenizer::Part;

/// Arguments of `chat`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
In the conversation:
  /reset          forget what was said
  /system TEXT    what the model is told first (and forget what was said)
  /save FILE      write the conversation as JSON
  /explain        how probable each token of the last answer was
  /quit           end (so does the end of input)

Examples:
  autoreg chat models/smollm2-135m-q4_1.gguf
  echo 'What is 2+2?' | autoreg chat models/smollm2-135m-q4_1.gguf --temperature 0")]
pub struct ChatArgs {
    /// A GGUF file or a Hugging Face folder with a chat template
    pub model: PathBuf,
    /// What the model is told first
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// New tokens an answer, at most
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_tokens: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Workers (default: the processors this process may use)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// What is merged into the weights
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// The settings
    #[command(flatten)]
    pub decoding: DecodingArgs,
}

/// A conversation under way.
struct Conversation<'a> {
    opened: &'a Opened,
    template: ChatTemplate,
    messages: Vec<Message>,
    system: Option<String>,
    /// (token, log-probability) of the last answer.
    last: Vec<(u32, f64)>,
}

/// Talks until the input ends.
pub fn run(args: &ChatArgs) -> Result<(), CliError> {
    let opened =
        Opened::open_adapted(&args.model, args.kv.kind(), args.adapter.adapter.as_deref())?;
    let Some(Template { source, bos_token, eos_token }) = &opened.template else {
        return Err(CliError::input(format!(
            "{}: the model has no chat template; `autoreg generate` continues a text",
            args.model.display()
        )));
    };
    let template = ChatTemplate::new(source, bos_token, eos_token).map_err(CliError::input)?;
    let mut conversation = Conversation {
        opened: &opened,
        template,
        messages: Vec::new(),
        system: args.system.clone(),
        last: Vec::new(),
    };
    conversation.reset();
    let rules = rules(args, &opened)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))
        .map_err(|e| CliError::failed(format!("signals cannot be watched: {e}")))?;
    let mut generator = Generator::new(opened.source(args.threads)?, &opened.tokenizer);
    let mut lines = std::io::stdin().lock().lines();
    let by_hand = std::io::stdin().is_terminal();
    let mut unanswered = 0;
    loop {
        if by_hand {
            term::print("> ");
        }
        let Some(line) = lines.next() else { break };
        let line = line.map_err(|e| CliError::input(format!("standard input: {e}")))?;
        match line.trim() {
            "" => {}
            "/quit" => break,
            command if command.starts_with('/') => conversation.command(command),
            text => {
                interrupted.store(false, Ordering::Relaxed);
                if !conversation.answer(args, text, &rules, &mut generator, &interrupted)? {
                    unanswered += 1;
                }
            }
        }
    }
    // Whoever talks has read why; a script sees the exit code.
    if unanswered > 0 && !by_hand {
        return Err(CliError::failed(format!("{unanswered} messages have no answer")));
    }
    Ok(())
}

fn rules(args: &ChatArgs, opened: &Opened) -> Result<Rules, CliError> {
    let asked = args
        .decoding
        .rules()
        .map_err(|e| CliError { message: e.to_string(), code: e.exit_code() })?;
    let ids = opened.never(false);
    let mut chain = asked.chain().to_vec();
    if !ids.is_empty() {
        chain.insert(0, Rule::Ban { ids });
    }
    Rules::new(chain).map_err(CliError::input)
}

impl Conversation<'_> {
    fn reset(&mut self) {
        self.messages = self.system.iter().map(|text| Message::new("system", text)).collect();
        self.last.clear();
    }

    fn command(&mut self, command: &str) {
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        match name {
            "/reset" => self.reset(),
            "/system" => {
                self.system = Some(rest.trim().to_owned()).filter(|text| !text.is_empty());
                self.reset();
            }
            "/save" if !rest.is_empty() => self.save(rest.trim()),
            "/explain" => self.explain(),
            other => term::note(&format!(
                "{other}: not a command; there are /reset, /system TEXT, /save FILE, /explain, /quit"
            )),
        }
    }

    fn save(&self, path: &str) {
        let text = serde_json::to_vec_pretty(&self.messages).unwrap_or_default();
        let written = formats::replace_file(path.as_ref(), |file| file.write_all(&text));
        match written {
            Ok(()) => term::note(&format!("{} messages in {path}", self.messages.len())),
            Err(e) => term::note(&format!("{path}: {e}{}", formats::hint(&e))),
        }
    }

    fn explain(&self) {
        if self.last.is_empty() {
            term::note("no answer yet");
        }
        for (id, logprob) in &self.last {
            let text = explain::visible(&self.opened.label(*id));
            term::print(&format!("{text:<20}{:>9.1} %\n", 100.0 * logprob.exp()));
        }
    }

    /// The tokens of the conversation up to where the answer begins. Names of control tokens in
    /// messages are plain text.
    fn prompt(&self) -> Result<Vec<u32>, chat::Error> {
        let tokenizer = &self.opened.tokenizer;
        // Text between two control tokens is encoded in one piece, messages included.
        let (mut ids, mut run) = (Vec::new(), String::new());
        for stretch in self.template.stretches(&self.messages, true)? {
            let text = match stretch {
                Stretch::Said(_, text) => {
                    run.push_str(&text);
                    continue;
                }
                Stretch::Template(text) => text,
            };
            for part in tokenizer.parts(&text) {
                match part {
                    Part::Text(text) => run.push_str(text),
                    Part::Control(id) => {
                        ids.extend(tokenizer.encode(&std::mem::take(&mut run)));
                        ids.push(id);
                    }
                }
            }
        }
        ids.extend(tokenizer.encode(&run));
        Ok(ids)
    }

    /// Whether there is an answer; why not is told.
    fn answer(
        &mut self,
        args: &ChatArgs,
        text: &str,
        rules: &Rules,
        generator: &mut Generator<'_, AnySource<'_>>,
        interrupted: &AtomicBool,
    ) -> Result<bool, CliError> {
        self.messages.push(Message::new("user", text));
        let limit = self.opened.saved.config().context_limit();
        let bos = self.opened.tokenizer.specials().bos;
        let prompt = self.prompt().map_err(|e| e.to_string()).and_then(|ids| {
            Prompt::from_ids(bos, ids, limit, Truncate::Never).map_err(|e| e.to_string())
        });
        let prompt = match prompt {
            Ok(prompt) => prompt.ids,
            Err(error) => {
                self.messages.pop();
                term::note(&format!("{error} (/reset forgets what was said)"));
                return Ok(false);
            }
        };
        let request = Request {
            prompt,
            rules: rules.clone(),
            seed: args.seed.wrapping_add(self.messages.len() as u64),
            first_sequence: 0,
            sequences: 1,
            max_tokens: args.max_tokens,
            end: self.opened.ends.clone(),
            stops: Vec::new(),
        };
        let started = Instant::now();
        let mut first = None;
        let done = generator.run_while(&request, &mut |event: &Event<'_>| {
            first.get_or_insert_with(|| started.elapsed().as_secs_f64());
            term::print(event.text);
            drop(std::io::stdout().flush());
            if interrupted.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let Some(sequence) = done.map_err(engine_error)?.into_iter().next() else {
            return Ok(false);
        };
        let (prefill, total) = (first.unwrap_or(0.0), started.elapsed().as_secs_f64());
        let decoded = sequence.tokens.len().saturating_sub(1);
        let rate = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(1e-9);
        let why = match sequence.finish {
            Finish::Eos => String::new(),
            other => format!(", {}", other.name()),
        };
        term::print("\n");
        term::note(&format!(
            "[{} tokens read at {:.1}/s, {} written at {:.1}/s{why}]",
            request.prompt.len(),
            rate(request.prompt.len(), prefill),
            sequence.tokens.len(),
            rate(decoded, total - prefill),
        ));
        self.last = sequence.tokens.iter().map(|t| (t.choice.id, t.choice.logprob)).collect();
        self.messages.push(Message::new("assistant", sequence.text));
        Ok(true)
    }
}
