// Package capabilities decides which programs get the capabilities of this process when it executes them: by default
// none.
//
// Start reading at Withhold.
package capabilities
