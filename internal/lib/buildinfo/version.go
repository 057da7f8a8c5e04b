package buildinfo

// Version is the version of the program. The build sets it with -ldflags -X.
var Version = "development"
