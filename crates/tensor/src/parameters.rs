//! Named parameters in one flat buffer: weights, gradients and moments share one layout.

use crate::halves::{Halves, Mixed, specs};
use kernels::{
    Factor, HalfKind, HalfMatrix, Init, PANEL_ROWS, QuantKind, QuantMatrix, Team, normal,
    stream_key,
};
use ledger::{Account, Buffer, Plan, Spec};
use std::collections::BTreeMap;
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

/// How a matrix is kept that is not kept as f32: in panels, and multiplied as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixKind {
    /// In 16 bits.
    Half(HalfKind),
    /// In blocks of codes.
    Quant(QuantKind),
}

impl MatrixKind {
    /// Bytes of a panel of sixteen rows of `cols` values.
    pub const fn panel_bytes(self, cols: usize) -> usize {
        match self {
            MatrixKind::Half(kind) => kind.panel_bytes(cols),
            MatrixKind::Quant(kind) => kind.panel_bytes(cols),
        }
    }

    /// Bytes of a matrix, the last panel filled up.
    pub const fn matrix_bytes(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(PANEL_ROWS) * self.panel_bytes(cols)
    }
}

/// Rows of a matrix in panels.
#[derive(Clone, Copy, Debug)]
pub enum Panels<'a> {
    /// In 16 bits.
    Half(HalfMatrix<'a>),
    /// In blocks of codes.
    Quant(QuantMatrix<'a>),
}

/// Matrices that are kept in panels, by name: the kinds of their rows from the first on.
pub type Storage = BTreeMap<String, Vec<(MatrixKind, usize)>>;

/// Neighbouring rows of a matrix in panels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantPart {
    /// How they are stored.
    pub kind: MatrixKind,
    /// Which rows.
    pub rows: Range<usize>,
    /// Where their panels stand in the buffer of blocks.
    pub bytes: Range<usize>,
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
    /// Where it stands in the flat buffer; empty for a matrix in panels.
    pub range: Range<usize>,
    /// The parts of a matrix in panels; empty for values.
    pub parts: Vec<QuantPart>,
}

impl ParameterSpec {
    /// Values that it holds.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its initial values from value `from` on: a pure function of the seed, its name and the place.
    pub fn fill_initial(&self, seed: u64, from: usize, out: &mut [f32]) {
        let name_hash = self.name.bytes().fold(0u64, |h, b| kernels::mix(h ^ u64::from(b)));
        let key = stream_key(seed, name_hash, 0);
        for (i, v) in (from as u64..).zip(out) {
            *v = match self.initial {
                Initial::Normal(deviation) => deviation * normal(key, i),
                Initial::Uniform(bound) => bound * (2.0 * kernels::uniform(key, i) - 1.0) as f32,
                Initial::Constant(value) => value,
            };
        }
    }
}

/// A parameter's place in a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamId(usize);

impl ParamId {
    /// Its place among the layout's parameters.
    pub fn index(self) -> usize {
        self.0
    }
}

/// The parameters of a network, in order.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    specs: Vec<ParameterSpec>,
    len: usize,
    storage: Storage,
    block_bytes: usize,
}

impl Layout {
    /// An empty layout in which the matrices named by `storage` are kept in panels.
    pub fn stored(storage: &Storage) -> Layout {
        Layout { storage: storage.clone(), ..Layout::default() }
    }

    /// Parameters at places of their own choosing; places of values may overlap, where parameters take
    /// turns. The end is at a multiple of sixteen values.
    pub fn of_specs(specs: Vec<ParameterSpec>) -> Layout {
        let len = specs.iter().map(|spec| spec.range.end).max().unwrap_or(0).next_multiple_of(16);
        let parts = specs.iter().flat_map(|spec| &spec.parts);
        let block_bytes = parts.map(|part| part.bytes.end).max().unwrap_or(0);
        Layout { specs, len, block_bytes, ..Layout::default() }
    }

    /// Values of a flat buffer of this layout.
    #[expect(clippy::len_without_is_empty, reason = "no network is without parameters")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a parameter. Each starts at a multiple of sixteen values.
    pub fn add(&mut self, name: &str, shape: &[usize], initial: Initial, decay: bool) -> ParamId {
        let parts = self.storage.remove(name).unwrap_or_default();
        let parts = self.place(&parts, shape);
        let count: usize = if parts.is_empty() { shape.iter().product() } else { 0 };
        let start = self.len.next_multiple_of(16);
        self.len = start + count;
        self.specs.push(ParameterSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            initial,
            decay,
            range: start..start + count,
            parts,
        });
        ParamId(self.specs.len() - 1)
    }

    /// Room for the panels of a matrix.
    fn place(&mut self, kinds: &[(MatrixKind, usize)], shape: &[usize]) -> Vec<QuantPart> {
        let mut parts: Vec<QuantPart> = Vec::with_capacity(kinds.len());
        for &(kind, rows) in kinds {
            let from = parts.last().map_or(0, |part| part.rows.end);
            let start = self.block_bytes.next_multiple_of(64);
            self.block_bytes = start + kind.matrix_bytes(rows, shape[1]);
            parts.push(QuantPart { kind, rows: from..from + rows, bytes: start..self.block_bytes });
        }
        parts
    }

    /// The parameters at some places of this layout, as values, in the same order.
    pub fn of_some(&self, places: impl IntoIterator<Item = usize>) -> Layout {
        let mut some = Layout::default();
        for spec in places.into_iter().map(|i| &self.specs[i]) {
            some.add(&spec.name, &spec.shape, spec.initial, spec.decay);
        }
        some
    }

    /// The same parameters at the same places, with room for the values of some alone: what
    /// gradients of those need. The others' ranges are empty.
    pub fn with_room_for(&self, wanted: impl Fn(&ParameterSpec) -> bool) -> Layout {
        let mut out = Layout::default();
        for spec in &self.specs {
            let count = if wanted(spec) { spec.count() } else { 0 };
            let start = out.len.next_multiple_of(16);
            out.len = start + count;
            let parts = Vec::new();
            out.specs.push(ParameterSpec { range: start..out.len, parts, ..spec.clone() });
        }
        out
    }

    /// Whether a parameter is kept in panels.
    pub fn is_packed(&self, id: ParamId) -> bool {
        !self.specs[id.0].parts.is_empty()
    }

    /// The parameters, in order.
    pub fn specs(&self) -> &[ParameterSpec] {
        &self.specs
    }

    /// The number of parameters, in the sense of the literature: values.
    pub fn count(&self) -> usize {
        self.specs.iter().map(ParameterSpec::count).sum()
    }

    /// What weights of this layout take: values and blocks.
    pub fn weight_specs(&self) -> Plan {
        let mut plan = Plan::default();
        plan.add(&self.buffer_spec("weights", Account::Weights));
        plan.add(&self.block_spec());
        plan
    }

    /// What weights of this layout take in mixed precision: FP32 master weights, what computation
    /// reads, and room for its products.
    pub fn mixed_specs(&self, mixed: Mixed) -> Plan {
        let mut plan = Plan::default();
        plan.add(&self.buffer_spec("master weights", Account::Master));
        self.half_specs(Account::Weights, mixed).iter().for_each(|spec| plan.add(spec));
        plan
    }

    /// 16 bits of parameters of this layout, booked under `account`, and room for their products.
    pub fn half_specs(&self, account: Account, mixed: Mixed) -> [Spec; 2] {
        specs(self, account, mixed)
    }

    /// What the panels of matrices take.
    pub fn block_spec(&self) -> Spec {
        let values = self.block_bytes.div_ceil(size_of::<f32>());
        Spec::new("quantised weights", Account::Weights, values)
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
    /// Panels of matrices as raw bits, of weights only.
    blocks: Option<Buffer<f32>>,
    /// What computation reads instead of the values, in mixed precision.
    halves: Option<Halves>,
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
        Ok(Parameters { layout: Arc::clone(layout), values, blocks: None, halves: None })
    }

    /// Weights, all zero, in panels where the layout says so.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn weights(layout: &Arc<Layout>) -> Result<Self, ledger::Error> {
        let mut weights = Parameters::zeros(layout, "weights", Account::Weights)?;
        weights.blocks = Some(Buffer::new(&layout.block_spec())?);
        Ok(weights)
    }

    /// Takes over the panels of other weights of the same matrices, which have none from then on.
    pub fn take_panels(&mut self, from: &mut Parameters) {
        self.blocks = from.blocks.take();
    }

    /// From now on computation reads matrices and tables in 16 bits; the values become master weights.
    /// Norms and biases are read as values.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn keep_halves(&mut self, team: &Team, mixed: Mixed) -> Result<(), ledger::Error> {
        self.values.move_to(Account::Master);
        self.halves = Some(Halves::new(&self.layout, Account::Weights, mixed)?);
        self.round_halves(team);
        Ok(())
    }

    /// Computation reads matrices and tables in 16 bits that stand in the places of a layout of their
    /// own and are filled from elsewhere; values are there for what is read as values.
    ///
    /// # Errors
    /// When memory is not to be had.
    pub fn hold_halves(
        &mut self,
        layout: &Arc<Layout>,
        account: Account,
        mixed: Mixed,
    ) -> Result<(), ledger::Error> {
        self.halves = Some(Halves::new(layout, account, mixed)?);
        Ok(())
    }

    /// Ends [`Parameters::keep_halves`]: computation reads the values again. They stay booked as the
    /// master weights that they are.
    pub fn drop_halves(&mut self) {
        self.halves = None;
    }

    /// Rounds the values to 16 bits again, where there are any; after values have changed.
    pub fn round_halves(&mut self, team: &Team) {
        if let Some(halves) = &mut self.halves
            && Arc::ptr_eq(&halves.layout, &self.layout)
        {
            let kind = halves.kind;
            let bits = &mut halves.bits_mut()[..self.values.len()];
            kernels::round_halves(team, kind, &self.values, bits);
        }
    }

    /// Which 16 bits computation reads, where it does.
    pub fn halves_kind(&self) -> Option<HalfKind> {
        self.halves.as_ref().map(|halves| halves.kind)
    }

    /// A parameter's 16 bits.
    pub fn half(&self, id: ParamId) -> Option<&[u16]> {
        let halves = self.halves.as_ref()?;
        Some(&halves.bits()[halves.layout.specs[id.0].range.clone()])
    }

    /// Values and, where there are any, their 16 bits: for an optimizer.
    pub fn values_and_halves_mut(&mut self) -> (&mut [f32], Option<(HalfKind, &mut [u16])>) {
        let halves = self.halves.as_mut().map(|halves| (halves.kind, halves.bits_mut()));
        (&mut self.values, halves)
    }

    /// C = init + A·B in 16 bits, summed in FP32; C's rows `place.0` apart, from column `place.1`.
    ///
    /// # Panics
    /// When these are no weights with halves, or shapes do not fit each other.
    pub fn product(
        &self,
        team: &Team,
        factors: (Factor, Factor),
        init: Init,
        c: &mut [f32],
        place: (usize, usize),
    ) {
        let Some(halves) = &self.halves else { panic!("weights in 16 bits") };
        halves.product(team, factors, init, c, place);
    }

    /// The parts of a matrix in panels, in the order of their rows; none for values.
    pub fn matrices(&self, id: ParamId) -> impl Iterator<Item = (Range<usize>, Panels<'_>)> {
        let spec = &self.layout.specs[id.0];
        spec.parts.iter().map(|part| {
            let bytes: &[u8] = self.blocks.as_ref().map_or(&[], |b| bytemuck::cast_slice(b));
            let panels = &bytes[part.bytes.clone()];
            let (rows, cols) = (part.rows.len(), spec.shape[1]);
            let matrix = match part.kind {
                MatrixKind::Half(kind) => Panels::Half(HalfMatrix { kind, rows, cols, panels }),
                MatrixKind::Quant(kind) => Panels::Quant(QuantMatrix { kind, rows, cols, panels }),
            };
            (part.rows.clone(), matrix)
        })
    }

    /// The values from `32·index` on of row `row` of a matrix in panels; nothing is written behind
    /// the row's end.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn packed_block(
        &self,
        id: ParamId,
        row: usize,
        index: usize,
        out: &mut [f32; kernels::QUANT_BLOCK],
    ) {
        let found = self.matrices(id).find(|(rows, _)| rows.contains(&row));
        let Some((rows, matrix)) = found else { panic!("row {row} of a matrix in panels") };
        let row = row - rows.start;
        let (panel, row) = (row / PANEL_ROWS, row % PANEL_ROWS);
        match matrix {
            Panels::Quant(QuantMatrix { kind, cols, panels, .. }) => {
                let panel = &panels[panel * kind.panel_bytes(cols)..];
                *out = kernels::unpack_block(kind, panel, row, index).values(kind);
            }
            Panels::Half(HalfMatrix { kind, cols, panels, .. }) => {
                let panel = &panels[panel * kind.panel_bytes(cols)..];
                let columns = index * out.len()..cols;
                columns.zip(out).for_each(|(column, v)| *v = kind.at(panel, row, column));
            }
        }
    }

    /// Everything at once, for who fills it: values, and the panels of matrices.
    pub fn parts_mut(&mut self) -> (&Layout, &mut [f32], &mut [u8]) {
        let blocks = self.blocks.as_mut().map_or(&mut [][..], |blocks| &mut blocks[..]);
        (&self.layout, &mut self.values, bytemuck::cast_slice_mut(blocks))
    }

    /// Sets every parameter to its initial value: a pure function of the seed, the parameter's
    /// name and the place in it.
    pub fn initialise(&mut self, seed: u64) {
        self.initialise_some(seed, |_| true);
    }

    /// The same for some parameters; the others are left as they are.
    pub fn initialise_some(&mut self, seed: u64, wanted: impl Fn(&ParameterSpec) -> bool) {
        let layout = Arc::clone(&self.layout);
        for spec in layout.specs().iter().filter(|spec| wanted(spec)) {
            spec.fill_initial(seed, 0, &mut self.values[spec.range.clone()]);
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
        kernels::clear(team, &mut self.values);
    }
}
