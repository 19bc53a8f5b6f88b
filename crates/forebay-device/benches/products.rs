//! Matrix products of typical network sizes, on one thread.
//!
//! `cargo bench -p forebay-device --bench products [-- NAME]`; `--list` only prints the names. `benches/products.py` compares them with a
//! BLAS library. The sizes are those of linear layers and of attention, forwards and for both gradients, of convolutions as products, and
//! of square matrices.

mod launching;

use std::error::Error;

use forebay_base::Kernel;
use forebay_bench_record::{Column, Record, Table};

use launching::{Machine, Run, float};

/// Linear layers: name, inputs, outputs, and numbers of rows.
const LAYERS: &[(&str, u64, u64, &[u64])] = &[
    ("BERT, attention projection", 768, 768, &[128, 1024]),
    ("BERT, up projection", 768, 3072, &[128, 1024]),
    ("BERT, down projection", 3072, 768, &[128, 1024]),
    ("GPT, QKV projection", 768, 2304, &[64, 512]),
    ("GPT, logits", 768, 8000, &[64]),
    ("ViT, attention projection", 384, 384, &[197, 1576]),
    ("ViT, QKV projection", 384, 1152, &[197]),
    ("ViT, up projection", 384, 1536, &[197]),
    ("ViT, down projection", 1536, 384, &[197]),
    ("large ViT, QKV projection", 768, 2304, &[200]),
    ("large ViT, up projection", 768, 3072, &[200]),
    ("large ViT, down projection", 3072, 768, &[200]),
    ("decoder, attention projection", 2048, 2048, &[1, 4, 16]),
    ("decoder, gate projection", 2048, 5504, &[1, 16]),
    ("MobileNet, classifier", 1280, 1000, &[1, 8, 32]),
    ("VGG, classifier", 4096, 4096, &[1, 8]),
    ("LSTM, gates", 256, 1024, &[1, 32, 512]),
    ("recommender, first", 13, 512, &[2048]),
    ("recommender, last", 256, 1, &[2048]),
    ("perceptron", 64, 128, &[64, 1024]),
    ("point cloud, first", 3, 64, &[4096]),
    ("point cloud, second", 64, 128, &[4096]),
    ("tall and narrow", 16, 16, &[10_000]),
    ("LoRA, down", 1024, 8, &[256]),
    ("LoRA, up", 8, 1024, &[256]),
    ("MLP-Mixer, tokens", 196, 384, &[512]),
];

/// Attention: heads, positions, elements per head.
const HEADS: &[(u64, u64, u64)] = &[(12, 128, 64), (6, 197, 64), (12, 512, 64), (32, 64, 128), (4, 1024, 32)];

/// Convolutions as products: channels of y, weights of a filter, positions.
const FILTERS: &[(u64, u64, u64)] = &[
    (64, 147, 12544),
    (64, 576, 3136),
    (128, 1152, 784),
    (256, 2304, 196),
    (512, 4608, 49),
    (256, 64, 3136),
    (512, 128, 784),
    (1024, 256, 196),
    (2048, 512, 49),
    (24, 96, 3136),
    (160, 960, 49),
    (32, 288, 65536),
];

const SQUARES: &[u64] = &[16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536];

/// A batch of products of `m x k` and `k x n` matrices, whose factors can be stored transposed.
struct Product {
    name: String,
    batches: u64,
    m: u64,
    k: u64,
    n: u64,
    transposes: [bool; 2],
}

impl Product {
    fn run(&self) -> Result<Run, Box<dyn Error>> {
        let &Product { batches, m, k, n, transposes: [a, b], .. } = self;
        let matrix = |rows: u64, columns: u64, is_transposed: bool| match is_transposed {
            true => float(&[batches, columns, rows]),
            false => float(&[batches, rows, columns]),
        };
        let reads = vec![matrix(m, k, a)?, matrix(k, n, b)?];
        Ok(Run { kernel: Kernel::product(a, b), reads, writes: vec![matrix(m, n, false)?] })
    }
}

fn products() -> Vec<Product> {
    let mut products = Vec::new();
    let mut add = |name: String, batches: u64, [m, k, n]: [u64; 3], transposes: [bool; 2]| {
        products.push(Product { name, batches, m, k, n, transposes });
    };
    // c = a b, and the gradients with respect to a and b, where b can be stored transposed.
    let mut directions = |name: &str, batches: u64, [m, k, n]: [u64; 3], b: bool| {
        add(name.to_string(), batches, [m, k, n], [false, b]);
        add(format!("{name}, by the first"), batches, [m, n, k], [false, !b]);
        match b {
            false => add(format!("{name}, by the second"), batches, [k, m, n], [true, false]),
            true => add(format!("{name}, by the second"), batches, [n, m, k], [true, false]),
        }
    };
    for &(name, inputs, outputs, rows) in LAYERS {
        for &rows in rows {
            directions(name, 1, [rows, inputs, outputs], false);
        }
        directions(&format!("{name}, transposed"), 1, [rows[0], inputs, outputs], true);
    }
    for &(heads, positions, size) in HEADS {
        directions("attention, scores", heads, [positions, size, positions], true);
        directions("attention, values", heads, [positions, positions, size], false);
    }
    for &(outputs, weights, positions) in FILTERS {
        directions("convolution", 1, [outputs, weights, positions], false);
    }
    for &size in SQUARES {
        directions("square", 1, [size; 3], false);
    }
    products
}

fn main() -> Result<(), Box<dyn Error>> {
    let given = forebay_bench_record::arguments()?;
    let filter = given.words.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let products: Vec<Product> = products().into_iter().filter(|product| product.name.contains(&filter)).collect();
    if given.words.iter().any(|argument| argument == "--list") {
        products.iter().for_each(|product| println!("{}", product.name));
        return Ok(());
    }
    let machine = Machine::new(Some(1))?;
    let mut table = Table::new(
        "products",
        [
            Column::text("product"),
            Column::count("batches"),
            Column::count("m"),
            Column::count("k"),
            Column::count("n"),
            Column::text("transposed"),
            Column::number("time", "ms", 4).of("best"),
            Column::number("speed", "GFLOP/s", 1).of("best"),
        ],
    );
    for product in &products {
        let seconds = machine.time(&product.run()?)?.as_secs_f64();
        let Product { name, batches, m, k, n, transposes } = product;
        let operations = (2 * batches * m * k * n) as f64;
        let transposed = match transposes {
            [false, false] => "",
            [true, false] => "first",
            [false, true] => "second",
            [true, true] => "both",
        };
        table.print([
            name.as_str().into(),
            (*batches).into(),
            (*m).into(),
            (*k).into(),
            (*n).into(),
            transposed.into(),
            (seconds * 1e3).into(),
            (operations / seconds / 1e9).into(),
        ]);
    }
    let record = Record::new(
        "products",
        "Matrix products of one thread",
        "cargo bench -p forebay-device --bench products --",
        &given.words,
    );
    record.with(table).save(given.output.as_deref())?;
    Ok(())
}
