//! Which instruction set the kernels use: found once, can be lowered, never raised.

use std::sync::atomic::{AtomicU8, Ordering};

/// An instruction-set level that the kernels are stamped for, lowest first in each architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Loops that the compiler vectorises for the build's baseline.
    Plain = 1,
    /// AVX2 with FMA and F16C: eight lanes a register, two registers a virtual vector.
    Avx2 = 2,
    /// AVX-512 F, DQ, BW and VL: sixteen lanes a register.
    Avx512 = 3,
    /// AVX-512 with VNNI, and AMX tiles for products of bytes.
    Amx = 4,
    /// NEON: four lanes a register, four registers a virtual vector; products of bytes by the
    /// dot-product instruction where there is one.
    Neon = 5,
}

static CURRENT: AtomicU8 = AtomicU8::new(0);

impl Isa {
    /// The levels of all architectures.
    pub const ALL: [Isa; 5] = [Isa::Plain, Isa::Avx2, Isa::Avx512, Isa::Amx, Isa::Neon];

    /// Those of this architecture, lowest first.
    const HERE: &[Isa] = if cfg!(target_arch = "aarch64") {
        &[Isa::Plain, Isa::Neon]
    } else {
        &[Isa::Plain, Isa::Avx2, Isa::Avx512, Isa::Amx]
    };

    /// The level in use. The processor is asked at the first call only.
    pub fn current() -> Isa {
        match CURRENT.load(Ordering::Relaxed) {
            1 => Isa::Plain,
            2 => Isa::Avx2,
            3 => Isa::Avx512,
            4 => Isa::Amx,
            5 => Isa::Neon,
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
            if has!("avx2") && has!("fma") && has!("f16c") {
                return Isa::Avx2;
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Isa::Neon;
        }
        Isa::Plain
    }

    /// The levels that this processor can run, lowest first: what tests go through.
    pub fn available() -> impl Iterator<Item = Isa> {
        let highest = Isa::HERE.iter().position(|&isa| isa == Isa::detect());
        Isa::HERE.iter().copied().take(highest.map_or(1, |at| at + 1))
    }

    /// Uses `self` from now on if the processor offers it, else the highest that it does; answers
    /// with the level now in use. Call it before work starts: it is one setting a process.
    pub fn force(self) -> Isa {
        let chosen = if Isa::available().any(|isa| isa == self) { self } else { Isa::detect() };
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
            Isa::Neon => "neon",
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
    }

    #[test]
    fn what_is_there_can_be_forced_and_nothing_else() {
        let _level = hold();
        let there: Vec<Isa> = Isa::available().collect();
        assert_eq!((there.first(), there.last()), (Some(&Isa::Plain), Some(&Isa::detect())));
        for isa in Isa::ALL {
            let chosen = if there.contains(&isa) { isa } else { Isa::detect() };
            assert_eq!((isa.force(), Isa::current()), (chosen, chosen));
        }
        let other = if cfg!(target_arch = "aarch64") { Isa::Avx2 } else { Isa::Neon };
        assert!(!there.contains(&other));
        Isa::detect().force();
    }
}
