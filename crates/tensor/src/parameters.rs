//! Named parameters in one flat buffer: weights, gradients and moments share one layout.

use kernels::{Team, normal, stream_key};
use ledger::{Account, Buffer, Spec};
use std::ops::Range;
use std::sync::Arc;

/// What a parameter starts as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// Normal with this standard deviation.
    Normal(f32),
    /// Uniform in ±this.
    Uniform(f32),
    /// One value.
    Constant(f32),
}

/// One named parameter.
#[derive(Clone, Debug)]
pub struct ParameterSpec {
    /// The name in files.
    pub name: String,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// What it starts as.
    pub initial: Initial,
    /// Whether weight decay applies: matrices yes; biases, norms and embeddings no.
    pub decay: bool,
    /// Where it stands in the flat buffer.
    pub range: Range<usize>,
}

/// A parameter's place in a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamId(usize);

/// The parameters of a network, in order.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    specs: Vec<ParameterSpec>,
    len: usize,
}

impl Layout {
    /// Adds a parameter. Each starts at a multiple of sixteen values.
    pub fn add(&mut self, name: &str, shape: &[usize], initial: Initial, decay: bool) -> ParamId {
        let count: usize = shape.iter().product();
        let start = self.len.next_multiple_of(16);
        self.len = start + count;
        self.specs.push(ParameterSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            initial,
            decay,
            range: start..start + count,
        });
        ParamId(self.specs.len() - 1)
    }

    /// The parameters, in order.
    pub fn specs(&self) -> &[ParameterSpec] {
        &self.specs
    }

    /// The number of parameters, in the sense of the literature: values.
    pub fn count(&self) -> usize {
        self.specs.iter().map(|s| s.range.len()).sum()
    }

    /// The buffer that holds one value a parameter, under a name and an account.
    pub fn buffer_spec(&self, name: &str, account: Account) -> Spec {
        Spec::new(name, account, self.len)
    }
}

/// One value for each parameter: weights, or gradients, or a moment.
#[derive(Debug)]
pub struct Parameters {
    layout: Arc<Layout>,
    values: Buffer<f32>,
}

impl Parameters {
    /// Zeros.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn zeros(
        layout: &Arc<Layout>,
        name: &str,
        account: Account,
    ) -> Result<Self, ledger::Error> {
        let values = Buffer::new(&layout.buffer_spec(name, account))?;
        Ok(Parameters { layout: Arc::clone(layout), values })
    }

    /// Sets every parameter to its initial value: a pure function of the seed, the parameter's
    /// name and the place in it.
    pub fn initialise(&mut self, seed: u64) {
        let layout = Arc::clone(&self.layout);
        for spec in layout.specs() {
            let name_hash = spec.name.bytes().fold(0u64, |h, b| kernels::mix(h ^ u64::from(b)));
            let key = stream_key(seed, name_hash, 0);
            let values = &mut self.values[spec.range.clone()];
            for (i, v) in values.iter_mut().enumerate() {
                *v = match spec.initial {
                    Initial::Normal(deviation) => deviation * normal(key, i as u64),
                    Initial::Uniform(bound) => {
                        bound * (2.0 * kernels::uniform(key, i as u64) - 1.0) as f32
                    }
                    Initial::Constant(value) => value,
                };
            }
        }
    }

    /// The layout.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// A parameter's values.
    pub fn get(&self, id: ParamId) -> &[f32] {
        &self.values[self.layout.specs[id.0].range.clone()]
    }

    /// A parameter's values, to be changed.
    pub fn get_mut(&mut self, id: ParamId) -> &mut [f32] {
        &mut self.values[self.layout.specs[id.0].range.clone()]
    }

    /// A matrix and its bias at once; no values for a bias that is absent.
    pub fn pair_mut(&mut self, id: ParamId, bias: Option<ParamId>) -> (&mut [f32], &mut [f32]) {
        let first = self.layout.specs[id.0].range.clone();
        let Some(bias) = bias else {
            return (&mut self.values[first], &mut []);
        };
        let second = self.layout.specs[bias.0].range.clone();
        // Parameters never overlap and a bias follows its matrix.
        let (head, tail) = self.values.split_at_mut(second.start);
        (&mut head[first], &mut tail[..second.len()])
    }

    /// Everything, gaps included: for what is done to all alike.
    pub fn flat(&self) -> &[f32] {
        &self.values
    }

    /// Everything, gaps included, to be changed.
    pub fn flat_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Zeroes everything.
    pub fn clear(&mut self, team: &Team) {
        kernels::scale(team, &mut self.values, 0.0);
    }
}
