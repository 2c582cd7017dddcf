//! placeholder
/// A mailbox.
pub struct Mailbox {
    /// owner
    pub owner: String,
    /// bytes
    pub mbox: Vec<u8>,
}
/// n
pub const DEFAULT_MESSAGES: usize = 24_000;
/// Generator.
pub struct Generator;
impl Generator {
    /// new
    pub fn new(_seed: u64, _messages: usize) -> Self {
        Self
    }
}
impl Iterator for Generator {
    type Item = Mailbox;
    fn next(&mut self) -> Option<Mailbox> {
        None
    }
}
