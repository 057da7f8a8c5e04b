// Package report is what a measurement leaves behind: result.json by a published schema, summary.csv, series.csv, and
// report.html, one file that needs nothing beside it; and the comparison of two such results.
//
// It owns the form of the results, the published figures that stand beside ours, with where they are from and how far
// they can be trusted, and how secrets are kept out. It must not know how anything is measured.
//
// Start reading at Report, then Save.
package report
