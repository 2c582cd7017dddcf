//! Sizes in words: GB is 10^9 bytes, GiB is 2^30, and what could be either is refused.

/// A number of bytes in both units: `16.381 GB (15.256 GiB)`.
pub fn both(bytes: u64) -> String {
    let b = bytes as f64;
    if bytes >= 10_000_000_000_000_000 {
        format!("{:.3} PB ({:.3} PiB)", b / 1e15, b / 1_125_899_906_842_624.0)
    } else if bytes >= 10_000_000_000_000 {
        format!("{:.3} TB ({:.3} TiB)", b / 1e12, b / 1_099_511_627_776.0)
    } else if bytes >= 1_000_000_000 {
        format!("{:.3} GB ({:.3} GiB)", b / 1e9, b / 1_073_741_824.0)
    } else if bytes >= 1_000_000 {
        format!("{:.3} MB ({:.3} MiB)", b / 1e6, b / 1_048_576.0)
    } else if bytes >= 10_000 {
        format!("{:.3} kB ({:.3} KiB)", b / 1e3, b / 1024.0)
    } else {
        format!("{bytes} B")
    }
}

/// A number of bytes in a few columns: `15.3 GiB`.
pub fn binary(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = (1..UNITS.len()).take_while(|&i| bytes >> (10 * (i + 1)) > 0).count();
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / 1024f64.powi(power as i32 + 1), UNITS[power]),
    }
}

/// The units that say what they mean, and their bytes.
const UNITS: [(&str, u64); 11] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("bytes", 1),
    ("B", 1),
];

/// Reads a size: `24GiB`, `24 GB`, `512MiB`, `1.5TB`, `123456B`.
///
/// # Errors
/// What is wrong with it and what to write instead, for units that could mean two things (`24G`,
/// `24gb`, `24Gb`) and for numbers without one.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    // An exponent is part of the number: 1e3MB.
    let unit = |(i, c): &(usize, char)| {
        let exponent = || text[i + 1..].starts_with(|c: char| c.is_ascii_digit() || c == '-');
        c.is_alphabetic() && !(c.eq_ignore_ascii_case(&'e') && exponent())
    };
    let at = text.char_indices().find(unit).map_or(text.len(), |(i, _)| i);
    let (number, unit) = (text[..at].trim(), text[at..].trim());
    let good = |value: f64| value > 0.0 && value.is_finite();
    let Some(value) = number.parse::<f64>().ok().filter(|&value| good(value)) else {
        return Err("give a size above 0 with its unit, like 24GiB (2^30) or 24GB (10^9)".into());
    };
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(ambiguous(number, unit));
    };
    let bytes = value * *factor as f64;
    if bytes < 1.0 || bytes >= u64::MAX as f64 {
        return Err(format!("{text} does not fit into 64 bits of whole bytes"));
    }
    Ok(bytes as u64)
}

fn ambiguous(number: &str, unit: &str) -> String {
    let letter = unit.chars().next().map_or('G', |c| c.to_ascii_uppercase());
    let letter = if "KMGT".contains(letter) { letter } else { 'G' };
    let why = match unit {
        "" => "a number alone has no unit".to_owned(),
        _ if unit.ends_with('b') && unit.len() == 2 => {
            format!("`{unit}` may be bits or bytes, of 1000 or of 1024")
        }
        _ if unit.len() == 1 => format!("`{unit}` may be of 1000 or of 1024"),
        _ => format!("`{unit}` is no unit known here"),
    };
    let kilo = if letter == 'K' { 'k' } else { letter };
    let power = match letter {
        'K' => (3, 10),
        'M' => (6, 20),
        'T' => (12, 40),
        _ => (9, 30),
    };
    format!("{why}; write {number}{kilo}B (10^{}) or {number}{letter}iB (2^{})", power.0, power.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_say_what_they_mean() {
        for (text, bytes) in [
            ("24GiB", 24 << 30),
            ("24 GB", 24_000_000_000),
            ("1.5MiB", 3 << 19),
            ("2TB", 2_000_000_000_000),
            ("7B", 7),
            ("10kB", 10_000),
            ("1e3MB", 1_000_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_could_be_either_is_refused() {
        for (text, word) in [
            ("24", "no unit"),
            ("24G", "of 1000 or of 1024"),
            ("24gb", "bits or bytes"),
            ("24Gb", "bits or bytes"),
            ("24 quarts", "no unit known"),
            ("GiB", "above 0"),
            ("-1GiB", "above 0"),
            ("0GB", "above 0"),
            ("99999999999GiB", "64 bits"),
            ("0.2B", "64 bits"),
            ("1e400GB", "above 0"),
            ("NaNGiB", "above 0"),
            ("infGB", "above 0"),
            ("", "above 0"),
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(parse_bytes("24m").unwrap_err().contains("24MB (10^6) or 24MiB (2^20)"));
    }

    #[test]
    fn both_units_are_shown() {
        assert_eq!(both(16_381_470_720), "16.381 GB (15.256 GiB)");
        assert_eq!(both(25_165_824), "25.166 MB (24.000 MiB)");
        assert_eq!(both(73_728), "73.728 kB (72.000 KiB)");
        assert_eq!(both(512), "512 B");
        let few = [0, 1023, 1024, 1 << 20, 3 << 29, u64::MAX].map(binary);
        assert_eq!(few, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB", "16384.0 PiB"]);
        assert_eq!(both(16 << 40), "17.592 TB (16.000 TiB)");
        assert_eq!(both(u64::MAX), "18446.744 PB (16384.000 PiB)");
    }
}
