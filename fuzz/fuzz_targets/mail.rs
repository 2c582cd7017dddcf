//! One message: any bytes give a text or a reason, never a panic.
#![no_main]

use corpus::mail::{MailReader, Mended, Quotes, Stripped, strip};

libfuzzer_sys::fuzz_target!(|raw: &[u8]| {
    for quotes in [Quotes::Strip, Quotes::Keep] {
        let mut mended = Mended::default();
        if let Ok(mail) = MailReader::new(quotes).with_header("X-Team").read(raw, &mut mended) {
            strip(&mail.text, &mut Stripped::default());
        }
    }
});
