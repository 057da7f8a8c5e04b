// Package docs holds no code: its tests keep the documentation true. They check that every command in it parses, that
// links lead somewhere, that names in ARCHITECTURE.md exist, and they run the page "Break it yourself" against a real
// lab.
//
// It must not be imported. Start reading at docs_test.go.
package docs
