// Package bed has what an experiment runs on: a lab made for it, or a group that you name.
package bed
