//! Which instruction set the kernels use: found once, can be lowered, never raised.

use std::sync::atomic::{AtomicU8, Ordering};

/// An instruction-set level that the kernels are stamped for, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What the build's baseline offers (SSE2 on x86-64, NEON on aarch64).
    Plain = 1,
    /// AVX2 with FMA: eight lanes a register, two registers a virtual vector.
    Avx2 = 2,
    /// AVX-512 F, DQ, BW and VL: sixteen lanes a register.
    Avx512 = 3,
    /// AVX-512 with VNNI, and AMX tiles for products of bytes.
    Amx = 4,
}

static CURRENT: AtomicU8 = AtomicU8::new(0);

impl Isa {
    /// Every level, lowest first.
    pub const ALL: [Isa; 4] = [Isa::Plain, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// The level in use. The processor is asked at the first call only.
    pub fn current() -> Isa {
        match CURRENT.load(Ordering::Relaxed) {
            1 => Isa::Plain,
            2 => Isa::Avx2,
            3 => Isa::Avx512,
            4 => Isa::Amx,
            _ => {
                let found = Isa::detect();
                CURRENT.store(found as u8, Ordering::Relaxed);
                found
            }
        }
    }

    /// The highest level that this processor offers.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx512f") && has!("avx512dq") && has!("avx512bw") && has!("avx512vl") {
                let amx = has!("avx512vnni") && has!("f16c") && crate::amx::available();
                return if amx { Isa::Amx } else { Isa::Avx512 };
            }
            if has!("avx2") && has!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Plain
    }

    /// The levels that this processor can run, lowest first: what tests go through.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|&isa| isa <= Isa::detect())
    }

    /// Uses `self` from now on if the processor offers it, else the highest that it does; answers
    /// with the level now in use. Call it before work starts: it is one setting a process.
    pub fn force(self) -> Isa {
        let chosen = self.min(Isa::detect());
        CURRENT.store(chosen as u8, Ordering::Relaxed);
        chosen
    }

    /// The name as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Plain => "plain",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }

    /// The level of that name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

/// Held by tests that need the level to stay as they set it; the level found is back in use.
#[cfg(test)]
pub(crate) fn hold() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Isa::detect().force();
    guard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("AVX9"), None);
        assert!(Isa::available().count() >= 1);
    }
}
