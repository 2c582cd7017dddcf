//! Speed and memory of data preparation: `measure_prepare write MESSAGES FILE` makes an mbox of
//! generated mail, `measure_prepare run FILE OUT GROUP-BY` prepares it and prints MB/s and the most
//! memory the process ever had (Linux).

#![expect(clippy::print_stdout, reason = "a program that tells what it measured")]

use corpus::{Options, prepare::Source, synthetic::Generator};
use std::{error::Error, fs, io::Write, path::PathBuf, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", messages, file] => write(messages.parse()?, file),
        ["run", file, out, group_by] => run(file, out, group_by),
        _ => Err("expected write MESSAGES FILE or run FILE OUT GROUP-BY".into()),
    }
}

fn write(messages: usize, file: &str) -> Result<(), Box<dyn Error>> {
    let mut file = std::io::BufWriter::new(fs::File::create(file)?);
    for mailbox in Generator::new(1, messages) {
        file.write_all(&mailbox.mbox)?;
    }
    Ok(file.flush()?)
}

fn run(file: &str, out: &str, group_by: &str) -> Result<(), Box<dyn Error>> {
    let mut options = Options::new(Source::Files(vec![PathBuf::from(file)]), PathBuf::from(out));
    options.group_by = group_by.parse()?;
    let begin = Instant::now();
    let report = corpus::prepare(&options, &mut ())?;
    let seconds = begin.elapsed().as_secs_f64();
    let megabytes = fs::metadata(file)?.len() as f64 / 1e6;
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM unknown");
    println!(
        "{} messages, {megabytes:.1} MB in {seconds:.2} s, {:.1} MB/s, {peak}",
        report.manifest.messages.read,
        megabytes / seconds
    );
    Ok(())
}
