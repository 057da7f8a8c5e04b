//go:build !coterie_unbounded

package admission

// unbounded switches every bound of this package off. The tag coterie_unbounded is for one test, which shows that an
// attack does harm without them.
const unbounded = false
