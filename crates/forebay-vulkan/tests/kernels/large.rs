//! A tensor that is really larger than a binding of some devices: 128 MiB and more.

use forebay_base::kernel::{Activation, Convolution, Window};
use forebay_base::{Binding, Command, DataType, Kernel, Launch, Region};

use crate::compare::{packed, vulkan};

/// The number of elements of an image of 132 MiB, while lavapipe's bindings hold 128 MiB, and of a window.
const ELEMENTS: u64 = 33 << 20;
const TAPS: u64 = 64;

#[test]
fn a_convolution_of_an_image_of_132_mib_is_right_to_its_last_element() {
    let Some(machine) = vulkan() else { return };
    let (device, stream) = (&*machine.device, machine.stream);
    let [kernel, strides, dilations, pads_begin, pads_end] = [TAPS, TAPS, 1, 0, 0].map(|value| vec![value]);
    let window = Window { kernel, strides, dilations, pads_begin, pads_end };
    let convolution = Convolution { window, groups: 1 };
    let kernel = Kernel::Convolution { convolution, activation: Activation::None };
    let descs = [ELEMENTS, TAPS, ELEMENTS / TAPS].map(|size| packed(DataType::Float32, &[1, 1, size]));
    let sizes_bytes = descs.each_ref().map(|desc| desc.total_size_bytes());
    let memory = device.create_placed(sizes_bytes.iter().sum()).unwrap();
    let mut end = 0;
    let regions = sizes_bytes.map(|bytes| {
        end += bytes;
        Region::new(memory, end - bytes, bytes)
    });
    // Ones, except for the first element, the last one within 128 MiB, the one after it, and the last.
    let others = [(0, 3.0f32), ((128 << 18) - 1, 5.0), (128 << 18, 7.0), (ELEMENTS - 1, 9.0)];
    let block = device.create_host_block(sizes_bytes[2]).unwrap();
    let words = Region::new(block, 0, 4 * others.len() as u64);
    device.write_host(words, &others.map(|(_, value)| value.to_le_bytes()).concat());
    let barrier = || Command::Barrier { stream };
    let ones = |region| Command::Fill { stream, region, pattern: 1.0f32.to_le_bytes() };
    let mut commands = vec![ones(regions[0]), ones(regions[1]), barrier()];
    commands.extend((0..).zip(others).map(|(number, (element, _))| Command::Copy {
        stream,
        from: Region::new(block, 4 * number, 4),
        to: Region::new(memory, regions[0].range.start + 4 * element, 4),
    }));
    let bind = |number: usize| Binding { region: regions[number], desc: descs[number].clone() };
    let launch = Launch { kernel, reads: vec![bind(0), bind(1)], writes: vec![bind(2)], workspace: None, label: 0 };
    commands.extend([barrier(), Command::Launch { stream, launch: Box::new(launch) }, barrier()]);
    let result = Region::new(block, 0, sizes_bytes[2]);
    commands.push(Command::Copy { stream, from: regions[2], to: result });
    device.submit(&commands).unwrap();
    device.synchronize(stream).unwrap();
    let mut bytes = vec![0; sizes_bytes[2] as usize];
    device.read_host(result, &mut bytes);
    let mut expected = vec![TAPS as f32; (ELEMENTS / TAPS) as usize];
    for (element, value) in others {
        expected[(element / TAPS) as usize] += value - 1.0;
    }
    let values: Vec<f32> = bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
    assert!(values == expected, "{:?}", values.iter().zip(&expected).position(|(value, expected)| value != expected));
    device.destroy_memory(memory);
    device.destroy_memory(block);
}
