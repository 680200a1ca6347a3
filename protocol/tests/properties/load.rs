//! Load reports, on gossip and as a header.

use crate::generate;
use dunlin_protocol::{limits, load::LoadReport};
use proptest::prelude::*;

proptest! {
    #[test]
    fn reports_come_back(report in generate::load_report()) {
        prop_assert_eq!(LoadReport::decode(&report.encode().unwrap()).unwrap(), report);
    }

    /// The header's value is one that HTTP carries, and gives the same report.
    #[test]
    fn headers_come_back(report in generate::load_report()) {
        let header = report.to_header().unwrap();
        prop_assert!(header.bytes().all(|b| b.is_ascii_graphic()));
        prop_assert_eq!(LoadReport::from_header(&header).unwrap(), report);
    }

    #[test]
    fn any_header_is_refused_or_decodes(value in any::<String>(), base64 in "[A-Za-z0-9_-]{0,400}") {
        let _ = LoadReport::from_header(&value);
        if let Ok(report) = LoadReport::from_header(&base64) {
            prop_assert_eq!(report.to_header().unwrap(), base64);
        }
    }
}

#[test]
fn an_oversized_header_is_refused_unread() {
    assert!(LoadReport::from_header(&"A".repeat(limits::LOAD_REPORT_BYTES * 2 + 1)).is_err());
}
