// Package bed makes or opens the system that an experiment runs on: a lab made for it, or a group that you name.
package bed
