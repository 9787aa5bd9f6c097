package history

import "fmt"

// A Write is one fenced write that was tried.
//
// Where a reply can be lost, take the accepted writes from a table that the write itself fills in its transaction: a
// client that got no answer does not know whether its write counts.
type Write struct {
	Grant           // the grant that the writer meant to write under, and the token that it stated
	Resource string `json:"resource"` // the fence, or the key of the row
	Accepted bool   `json:"accepted,omitempty"`
	// Serial orders the accepted writes of one resource. The write draws it in its own transaction while it holds the
	// fence, so that the order of serials is the order of commits. A refused write has none.
	Serial int64 `json:"serial,omitempty"`
}

// String shows the write and how the fence answered.
func (w Write) String() string {
	if !w.Accepted {
		return fmt.Sprintf("write: %s under %v refused", w.Resource, w.Grant)
	}
	return fmt.Sprintf("write %d: %s under %v acquisition %s accepted", w.Serial, w.Resource, w.Grant, w.Acquisition)
}
