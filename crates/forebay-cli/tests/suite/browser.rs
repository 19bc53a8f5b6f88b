//! The page about a run, in a real browser: it loads nothing, runs no scripts, reports no problems, and shows the expected content in wide
//! and narrow windows, light and dark. `FOREBAY_PICTURES=FOLDER` keeps the browser's pictures.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::common::{self, Folder, digits_data, digits_model, success};
use forebay_testing::parts::skipped;
use image::RgbImage;
use serde_json::Value;

/// Headless Chromium: Debian's name and Google's.
const BROWSERS: [&str; 2] = ["chromium-headless-shell", "chrome-headless-shell"];
/// Window widths in pixels: a screen's and a telephone's.
const WIDTHS: [u32; 2] = [1280, 390];
/// More than the height of the page.
const HEIGHT: u32 = 4400;

/// Measures the page and writes the result into an element that the browser prints with the others.
const MEASURE: &str = "<script>const box = each => { const { width, height } = each.getBoundingClientRect(); return [width, height]; };\
    const all = (what, of) => [...document.querySelectorAll(what)].map(of);\
    const found = document.createElement('output');\
    found.textContent = JSON.stringify({\
    window: innerWidth, page: document.documentElement.scrollWidth, height: Math.ceil(document.body.getBoundingClientRect().height),\
    titles: all('h2', each => each.textContent), charts: all('svg', box), curves: all('polyline', box),\
    words: all('.chart span', each => parseFloat(getComputedStyle(each).fontSize)),\
    back: getComputedStyle(document.body).backgroundColor, first: getComputedStyle(document.querySelector('polyline')).stroke,\
    loaded: performance.getEntriesByType('resource').map(each => each.name) });\
    document.body.append(found);</script>";

/// Returns the browser, if there is one.
fn browser() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    let is_there = |name: &&str| {
        let mut command = Command::new(name);
        command.arg("--version").stdin(Stdio::null());
        command.output().is_ok_and(|output| output.status.success())
    };
    let found = FOUND.get_or_init(|| BROWSERS.into_iter().find(is_there));
    if found.is_none() {
        skipped("browser", format!("no browser found to open the page of a run (tried {})", BROWSERS.join(", ")));
    }
    *found
}

/// What happened when the browser opened a page.
struct Opened {
    /// The final elements of the page.
    elements: String,
    /// Messages on its console.
    complaints: Vec<String>,
    /// Its network requests.
    requests: BTreeSet<String>,
}

/// Opens a page in a window of this width, in dark or light colors, and draws it.
fn open(page: &Path, width: u32, is_dark: bool, picture: Option<&Path>) -> Opened {
    let profile = Folder::new();
    let log = profile.path("net-log.json");
    let mut command = Command::new(browser().expect("it was found before"));
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--hide-scrollbars",
    ]);
    command.args(["--no-first-run", "--disable-dev-shm-usage", "--enable-logging=stderr", "--dump-dom"]);
    command.arg(format!("--window-size={width},{HEIGHT}")).arg(format!("--user-data-dir={}", profile.text("profile")));
    command
        .arg(format!("--log-net-log={}", log.display()))
        .arg(format!("--blink-settings=preferredColorScheme={}", if is_dark { 0 } else { 1 }));
    picture.into_iter().for_each(|picture| {
        command.arg(format!("--screenshot={}", picture.display()));
    });
    let output = command.arg(format!("file://{}", page.display())).output().expect("the browser starts");
    let (elements, errors) = common::texts(&output);
    assert!(output.status.success(), "{command:?}\n{elements}\n{errors}");
    let complaints = errors.lines().filter(|line| line.contains(":CONSOLE:")).map(str::to_owned).collect();
    let log: Value = serde_json::from_str(&std::fs::read_to_string(log).expect("a record of the network")).unwrap();
    let urls = log["events"].as_array().into_iter().flatten().filter_map(|event| event["params"]["url"].as_str());
    Opened { elements, complaints, requests: urls.map(str::to_owned).collect() }
}

/// Returns a page's measurements; the page must not report problems.
fn measured(page: &Path, width: u32, is_dark: bool) -> Value {
    let Opened { elements, complaints, .. } = open(page, width, is_dark, None);
    assert!(complaints.is_empty(), "{complaints:?}");
    let (_, found) = elements.split_once("<output>").expect("what was measured");
    serde_json::from_str(found.split_once("</output>").unwrap().0).unwrap()
}

/// Parses a style's color: `rgb(31, 95, 168)`.
fn color(style: &Value) -> [u8; 3] {
    let numbers = style.as_str().unwrap().trim_start_matches("rgb(").trim_end_matches(')').split(", ");
    let numbers: Vec<u8> = numbers.map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// The page of a real run whose model has a long path.
fn report(folder: &Folder) -> String {
    let name = format!("{}.onnx", "digits-of-a-long-name-".repeat(5));
    std::fs::copy(digits_model(), folder.path(&name)).unwrap();
    let (data, validation) = (format!("{}#0..500", digits_data()), format!("{}#500..700", digits_data()));
    let (model, page) = (folder.text(&name), folder.text("report.html"));
    let run = ["train", &model, "--data", &data, "--batch-size", "50", "--input-scale", "0.0625", "--threads", "1"];
    let more = ["--validate", &validation, "--validate-every", "2", "--metrics", "f1", "--epochs", "2", "--no-compare"];
    success(&[run.as_slice(), &more, &["--report", &page]].concat());
    page
}

#[test]
fn a_page_is_shown_whole_and_loads_nothing() {
    if browser().is_none() {
        return;
    }
    let folder = Folder::new();
    let text = std::fs::read_to_string(report(&folder)).unwrap();
    let alone = Folder::new();
    let page = alone.path("report.html");
    std::fs::write(&page, &text).unwrap();
    // The same page with a script that measures it, which the page's own policy would block.
    let policy = "style-src 'unsafe-inline'";
    assert_eq!(text.matches(policy).count(), 1);
    let changed = text.replace(policy, "style-src 'unsafe-inline'; script-src 'unsafe-inline'");
    let measuring = alone.path("measured.html");
    std::fs::write(&measuring, changed.replace("</body>", &format!("{MEASURE}</body>"))).unwrap();
    for (width, is_dark) in WIDTHS.into_iter().flat_map(|width| [(width, false), (width, true)]) {
        let place = format!("{width} wide, {}", if is_dark { "dark" } else { "light" });
        let found = measured(&measuring, width, is_dark);
        assert_eq!((&found["window"], &found["page"]), (&width.into(), &width.into()), "{place}: scrolls sideways");
        assert!(found["height"].as_u64().unwrap() < HEIGHT.into(), "{place}: {}", found["height"]);
        assert_eq!(found["loaded"], Value::Array(Vec::new()), "{place}");
        let titles: Vec<&str> =
            found["titles"].as_array().unwrap().iter().map(|title| title.as_str().unwrap()).collect();
        for title in [
            "Loss",
            "Validation: accuracy",
            "Validation: f1",
            "Seconds per step",
            "Time by kind of work",
            "Memory over a step",
        ] {
            assert!(titles.contains(&title), "{place}: {titles:?}");
        }
        for chart in found["charts"].as_array().unwrap() {
            let [width, height] = [0, 1].map(|side| chart[side].as_f64().unwrap());
            assert!(width >= 230.0 && height >= 150.0, "{place}: {chart}");
        }
        // Two curves each for losses and seconds, one each for the learning rate, the accuracy and F1.
        assert_eq!(found["curves"].as_array().unwrap().len(), 7, "{place}");
        assert!(found["words"].as_array().unwrap().iter().all(|size| size.as_f64() >= Some(11.0)), "{place}");
        let picture = alone.path("page.png");
        let Opened { elements, complaints, requests } = open(&page, width, is_dark, Some(&picture));
        assert_eq!((complaints.len(), requests.len()), (0, 0), "{place}: {complaints:?}, {requests:?}");
        assert_eq!(elements.matches("<svg").count(), 6, "{place}");
        assert!(elements.contains("batch-size = 50") && elements.contains("moved per step"), "{place}");
        let (back, first) = (color(&found["back"]), color(&found["first"]));
        assert_eq!(back.iter().all(|&part| part < 60), is_dark, "{place}: {back:?}");
        let pixels: RgbImage = image::open(&picture).unwrap().into_rgb8();
        assert_eq!(pixels.width(), width, "{place}");
        let count = |wanted: [u8; 3]| pixels.pixels().filter(|pixel| pixel.0 == wanted).count();
        let all = (pixels.width() * pixels.height()) as usize;
        assert!(count(back) > all / 4 && count(back) < all * 99 / 100, "{place}: {} of {all}", count(back));
        assert!(count(first) > 300, "{place}: the curve has {} pixels", count(first));
        if let Ok(folder) = std::env::var("FOREBAY_PICTURES") {
            std::fs::copy(&picture, format!("{folder}/page-{width}-{is_dark}.png")).unwrap();
        }
    }
}

#[test]
fn the_browser_would_tell() {
    if browser().is_none() {
        return;
    }
    let folder = Folder::new();
    let page = folder.path("page.html");
    std::fs::write(&page, "<script>nothing()</script><img src=\"http://127.0.0.1:9/a.png\">").unwrap();
    let Opened { complaints, requests, .. } = open(&page, WIDTHS[1], false, None);
    assert!(complaints.iter().any(|line| line.contains("nothing is not defined")), "{complaints:?}");
    assert_eq!(requests.into_iter().collect::<Vec<_>>(), ["http://127.0.0.1:9/a.png"]);
    let policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'\">";
    std::fs::write(folder.path("b.png"), []).unwrap();
    std::fs::write(&page, format!("{policy}<img src=\"b.png\">")).unwrap();
    let Opened { complaints, .. } = open(&page, WIDTHS[1], false, None);
    assert!(complaints.iter().any(|line| line.contains("b.png")), "files too are refused: {complaints:?}");
}
