package tree

import (
	"fmt"
	"path/filepath"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// MapTablespaces gets the place of each tablespace of the source from ask, and refuses unusable places.
func MapTablespaces(target string, ask func(oid uint32, location string) (string, error), spaces []wire.Space) (map[uint32]string, error) {
	places := map[uint32]string{}
	used := map[string]uint32{}
	for _, t := range spaces {
		if !filepath.IsAbs(t.Location) || t.OID == 0 {
			return nil, fmt.Errorf("tablespace %d lies inside the source's data directory (%s), which is not supported", t.OID, t.Location)
		}
		if ask == nil {
			return nil, fmt.Errorf("the source has tablespace %d at %s; say where it goes on this node", t.OID, t.Location)
		}
		place, err := ask(t.OID, t.Location)
		if err != nil {
			return nil, fmt.Errorf("tablespace %d at %s: %w", t.OID, t.Location, err)
		}
		place = filepath.Clean(place)
		if !filepath.IsAbs(place) || fileio.Within(place, target) || fileio.Within(target, place) {
			return nil, fmt.Errorf("tablespace %d cannot go to %s: an absolute path apart from the data directory is needed", t.OID, place)
		}
		if t.IsAt(place) {
			return nil, fmt.Errorf("tablespace %d would go to %s, where the source has its own: both nodes run on one machine; map it to another place", t.OID, place)
		}
		if other, twice := used[place]; twice {
			return nil, fmt.Errorf("tablespaces %d and %d cannot both go to %s", other, t.OID, place)
		}
		used[place] = t.OID
		places[t.OID] = place
	}
	return places, nil
}

// CheckLinks refuses an old copy whose links lead to what another node uses, as of a data directory that was copied by
// hand, on one machine: what is there would be removed.
func CheckLinks(target string, theirs wire.Window) error {
	if link := filepath.Join(target, "pg_wal"); theirs.WAL.IsAt(link) {
		return fmt.Errorf("pg_wal of the old copy here is a link to %s, where the source has its own WAL; remove %s", theirs.WAL.Location, link)
	}
	for _, o := range linkedTablespaces(target) {
		for _, t := range theirs.Spaces {
			if t.IsAt(o.Location) {
				return fmt.Errorf("the old copy here has a tablespace at %s, where the source has its own tablespace %d; remove its link in %s", o.Location, t.OID, filepath.Join(target, "pg_tblspc"))
			}
		}
	}
	return nil
}
