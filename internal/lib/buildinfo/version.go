package buildinfo

// Version is set by the build.
var Version = "development"
